//! OpenTelemetry's profiles signal (`v1development`): what its Collector and what stands behind it take.
//!
//! One request has four profiles that share a dictionary, each of one kind of values: objects and bytes, allocated and in
//! use, as in pprof. They are estimates of the whole program. The signal is not stable yet; the messages are those of the
//! crate that the OpenTelemetry project publishes.

use std::collections::HashMap;

use allocsample_profile::{Frame, Profile, StackId, Weights};
use indexmap::IndexSet;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use crate::pprof::{SAMPLE_TYPES, values};
use crate::rounding::Rounding;
use crate::source::{Source, build_id_hex, thread_name};

/// The request that tells a profile, encoded. `resource` are attributes of the process, `service.name` among them;
/// `allocated_since_ns` as in [`crate::Options`]. `None`: it has more parts than the messages can number.
pub fn write_otlp(
    profile: &Profile,
    allocated_since_ns: u64,
    resource: &[(String, String)],
) -> Option<Vec<u8>> {
    let source = Source::of(profile);
    request(&source, allocated_since_ns, resource).map(|request| request.encode_to_vec())
}

fn request(
    source: &Source,
    since_ns: u64,
    resource: &[(String, String)],
) -> Option<ExportProfilesServiceRequest> {
    let mut builder = Builder::new();
    let profiles = builder.profiles(source, since_ns)?;
    let dictionary = builder.dictionary(source)?;
    let attribute = |(key, value): &(String, String)| KeyValue {
        key: key.clone(),
        value: Some(text(value)),
        ..KeyValue::default()
    };
    let scope = InstrumentationScope {
        name: "allocsample".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    Some(ExportProfilesServiceRequest {
        resource_profiles: vec![otlp::ResourceProfiles {
            resource: Some(Resource {
                attributes: resource.iter().map(attribute).collect(),
                ..Resource::default()
            }),
            scope_profiles: vec![otlp::ScopeProfiles {
                scope: Some(scope),
                profiles,
                ..otlp::ScopeProfiles::default()
            }],
            ..otlp::ResourceProfiles::default()
        }],
        dictionary: Some(dictionary),
    })
}

fn text(value: &str) -> AnyValue {
    AnyValue {
        value: Some(Value::StringValue(value.to_owned())),
    }
}

/// A number in the messages: 31 bits.
fn number(index: usize) -> Option<i32> {
    i32::try_from(index).ok()
}

/// The dictionary's tables. Number 0 of each stands for nothing.
struct Builder {
    strings: IndexSet<String>,
    functions: IndexSet<(usize, usize)>,
    /// Key and value, as strings.
    attributes: IndexSet<(usize, String)>,
    /// Stacks that samples have, and their numbers less one.
    stacks: IndexSet<StackId>,
}

impl Builder {
    fn new() -> Self {
        Self {
            strings: IndexSet::from([String::new()]),
            functions: IndexSet::from([(0, 0)]),
            attributes: IndexSet::from([(0, String::new())]),
            stacks: IndexSet::new(),
        }
    }

    fn string(&mut self, text: &str) -> usize {
        self.strings.insert_full(text.to_owned()).0
    }

    fn attribute(&mut self, key: &str, value: &str) -> usize {
        let key = self.string(key);
        self.attributes.insert_full((key, value.to_owned())).0
    }

    fn value_type(&mut self, name: &str, unit: &str) -> Option<otlp::ValueType> {
        Some(otlp::ValueType {
            type_strindex: number(self.string(name))?,
            unit_strindex: number(self.string(unit))?,
        })
    }

    fn profiles(&mut self, source: &Source, since_ns: u64) -> Option<Vec<otlp::Profile>> {
        let mut sums: Vec<((StackId, usize), [f64; 4])> = Vec::new();
        let mut places: HashMap<(StackId, usize), usize> = HashMap::new();
        let mut weights = Weights::of(source.profile);
        for sample in source.samples.iter() {
            let values = values(&sample, &mut weights, since_ns);
            if values == [0.0; 4] {
                continue;
            }
            let key = (sample.stack, source.thread(sample.thread));
            let place = *places.entry(key).or_insert_with(|| {
                sums.push((key, [0.0; 4]));
                sums.len() - 1
            });
            for (sum, value) in sums[place].1.iter_mut().zip(values) {
                *sum += value;
            }
        }
        let about = &source.profile.process;
        let from_ns = since_ns.max(about.start_ns).min(about.end_ns);
        let threads: Vec<usize> = source
            .threads
            .iter()
            .map(|thread| self.attribute("thread.name", &thread_name(thread)))
            .collect();
        let mut profiles = Vec::new();
        for (kind, (name, unit)) in SAMPLE_TYPES.into_iter().enumerate() {
            let mut rounding = Rounding::default();
            let mut samples = Vec::new();
            for ((stack, thread), sum) in sums.iter().filter(|(_, sum)| sum[kind] > 0.0) {
                samples.push(otlp::Sample {
                    stack_index: number(self.stacks.insert_full(*stack).0 + 1)?,
                    attribute_indices: vec![number(threads.get(*thread).copied().unwrap_or(0))?],
                    values: vec![rounding.next(sum[kind])],
                    ..otlp::Sample::default()
                });
            }
            profiles.push(otlp::Profile {
                sample_type: self.value_type(name, unit),
                samples,
                time_unix_nano: about.start_wall_ns + (from_ns - about.start_ns),
                duration_nano: about.end_ns.saturating_sub(from_ns),
                period_type: self.value_type("space", "bytes"),
                period: source.profile.interval_bytes().cast_signed(),
                profile_id: id(source, from_ns, kind),
                ..otlp::Profile::default()
            });
        }
        Some(profiles)
    }

    fn line(&mut self, line: &Frame) -> Option<otlp::Line> {
        let name = self.string(&line.function);
        let file = self.string(line.file.as_deref().unwrap_or_default());
        Some(otlp::Line {
            function_index: number(self.functions.insert_full((name, file)).0)?,
            line: i64::from(line.line),
            column: 0,
        })
    }

    fn dictionary(mut self, source: &Source) -> Option<otlp::ProfilesDictionary> {
        let mut mapping_table = vec![otlp::Mapping::default()];
        for module in &source.profile.modules {
            let build_id = build_id_hex(module);
            let attributes = match build_id.is_empty() {
                true => Vec::new(),
                false => vec![number(
                    self.attribute("process.executable.build_id.gnu", &build_id),
                )?],
            };
            mapping_table.push(otlp::Mapping {
                memory_start: module.start,
                memory_limit: module.end,
                filename_strindex: number(self.string(&module.path))?,
                attribute_indices: attributes,
                ..otlp::Mapping::default()
            });
        }
        let mut location_table = vec![otlp::Location::default()];
        for location in &source.locations {
            let lines: Option<Vec<_>> = location.lines.iter().map(|line| self.line(line)).collect();
            location_table.push(otlp::Location {
                mapping_index: location
                    .module
                    .map_or(Some(0), |module| number(module + 1))?,
                address: source.address_in_memory(location),
                lines: lines?,
                ..otlp::Location::default()
            });
        }
        let mut stack_table = vec![otlp::Stack::default()];
        for stack in self.stacks {
            let locations = source.locations_of(stack);
            let locations: Option<Vec<_>> = locations.map(|it| number(it + 1)).collect();
            stack_table.push(otlp::Stack {
                location_indices: locations?,
            });
        }
        let function_table: Option<Vec<_>> = self
            .functions
            .into_iter()
            .map(|(name, file)| {
                Some(otlp::Function {
                    name_strindex: number(name)?,
                    filename_strindex: number(file)?,
                    ..otlp::Function::default()
                })
            })
            .collect();
        let attribute_table: Option<Vec<_>> = self
            .attributes
            .into_iter()
            .map(|(key, value)| {
                Some(otlp::KeyValueAndUnit {
                    key_strindex: number(key)?,
                    value: (key != 0).then(|| text(&value)),
                    unit_strindex: 0,
                })
            })
            .collect();
        Some(otlp::ProfilesDictionary {
            mapping_table,
            location_table,
            function_table: function_table?,
            link_table: vec![otlp::Link::default()],
            string_table: self.strings.into_iter().collect(),
            attribute_table: attribute_table?,
            stack_table,
        })
    }
}

/// The same bytes if the same is sent again, so that a receiver can tell: process, beginning, end, kind.
fn id(source: &Source, from_ns: u64, kind: usize) -> Vec<u8> {
    let about = &source.profile.process;
    let wall_ns = about.start_wall_ns + (from_ns - about.start_ns);
    let duration_ns = about.end_ns.saturating_sub(from_ns);
    // Of the second half the pid takes 22 bits at most, and there are four kinds.
    let rest = duration_ns.rotate_left(24) ^ u64::from(about.pid) << 2 ^ kind as u64;
    [wall_ns.to_be_bytes(), rest.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixture, pprof};

    fn decoded(source: &Source, since_ns: u64) -> ExportProfilesServiceRequest {
        let attributes = [("service.name".to_owned(), "app".to_owned())];
        let bytes = request(source, since_ns, &attributes)
            .unwrap()
            .encode_to_vec();
        ExportProfilesServiceRequest::decode(&bytes[..]).unwrap()
    }

    #[test]
    fn each_table_begins_with_nothing_and_each_number_is_in_its_table() {
        let request = decoded(&fixture::source(), 0);
        let dictionary = request.dictionary.unwrap();
        assert_eq!(dictionary.mapping_table[0], otlp::Mapping::default());
        assert_eq!(dictionary.location_table[0], otlp::Location::default());
        assert_eq!(dictionary.function_table[0], otlp::Function::default());
        assert_eq!(dictionary.link_table, [otlp::Link::default()]);
        assert_eq!(dictionary.string_table[0], "");
        assert_eq!(
            dictionary.attribute_table[0],
            otlp::KeyValueAndUnit::default()
        );
        assert_eq!(dictionary.stack_table[0], otlp::Stack::default());
        let is_in = |index: i32, length: usize| usize::try_from(index).unwrap() < length;
        let strings = dictionary.string_table.len();
        for location in &dictionary.location_table {
            assert!(is_in(
                location.mapping_index,
                dictionary.mapping_table.len()
            ));
            for line in &location.lines {
                assert!(is_in(line.function_index, dictionary.function_table.len()));
            }
        }
        for function in &dictionary.function_table {
            assert!(is_in(function.name_strindex, strings));
            assert!(is_in(function.filename_strindex, strings));
        }
        for stack in &dictionary.stack_table {
            for &location in &stack.location_indices {
                assert!(location > 0 && is_in(location, dictionary.location_table.len()));
            }
        }
        let profiles = &request.resource_profiles[0].scope_profiles[0].profiles;
        for profile in profiles {
            assert_eq!(profile.profile_id.len(), 16);
            for sample in &profile.samples {
                assert!(sample.stack_index > 0);
                assert!(is_in(sample.stack_index, dictionary.stack_table.len()));
                for &attribute in &sample.attribute_indices {
                    assert!(is_in(attribute, dictionary.attribute_table.len()));
                }
            }
        }
    }

    #[test]
    fn the_sums_are_those_of_pprof() {
        let source = fixture::source();
        let middle = source.samples.at(source.samples.len() / 2).time_ns;
        for since_ns in [0, middle, u64::MAX] {
            let request = decoded(&source, since_ns);
            let dictionary = request.dictionary.unwrap();
            let profiles = &request.resource_profiles[0].scope_profiles[0].profiles;
            assert_eq!(profiles.len(), 4);
            for (kind, profile) in profiles.iter().enumerate() {
                let mut weights = Weights::of(source.profile);
                let samples = source.samples.iter();
                let exact: f64 = samples
                    .map(|sample| pprof::values(&sample, &mut weights, since_ns)[kind])
                    .sum();
                let sum: i64 = profile.samples.iter().map(|sample| sample.values[0]).sum();
                assert!((sum as f64 - exact).abs() <= 0.5, "{sum} {exact}");
                let named = profile.sample_type.unwrap();
                let name = &dictionary.string_table[named.type_strindex as usize];
                assert_eq!(name, SAMPLE_TYPES[kind].0);
            }
        }
    }
}
