//! Pyroscope's push API: `push.v1.PusherService/Push` by the Connect protocol, which Grafana Alloy accepts as well.

use allocsample_export::{Format, Options};
use allocsample_profile::Profile;
use anyhow::Context;
use prost::Message;

use super::endpoint::Endpoint;
use crate::args;

/// `push.v1.PushRequest`.
#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<Series>,
}

/// `push.v1.RawProfileSeries`.
#[derive(Clone, PartialEq, Message)]
struct Series {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

/// `types.v1.LabelPair`.
#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `push.v1.RawSample`.
#[derive(Clone, PartialEq, Message)]
struct RawSample {
    /// A profile in the form of pprof, gzipped.
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
}

/// The server, and the labels of the process.
pub struct Pyroscope {
    endpoint: Endpoint,
    labels: Vec<LabelPair>,
}

impl Pyroscope {
    /// The server of these arguments.
    pub fn new(arguments: &args::Push, service: &str) -> anyhow::Result<Self> {
        let label = |name: &str, value: &str| LabelPair {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        // The name that Pyroscope uses for profiles of Go's heap, which have the same sample types as ours.
        let mut labels = vec![label("__name__", "memory"), label("service_name", service)];
        let given = arguments.labels.iter();
        labels.extend(given.map(|args::Label(name, value)| label(name, value)));
        let headers = [
            ("Content-Type", "application/proto"),
            ("Connect-Protocol-Version", "1"),
        ];
        Ok(Self {
            endpoint: Endpoint::new(arguments, "/push.v1.PusherService/Push", &headers)?,
            labels,
        })
    }

    /// Sends the allocations since then, and the live heap.
    pub fn push(&self, profile: &Profile, since_ns: u64) -> anyhow::Result<()> {
        let message = PushRequest {
            series: vec![Series {
                labels: self.labels.clone(),
                samples: vec![RawSample {
                    raw_profile: pprof(profile, since_ns)?,
                }],
            }],
        };
        self.endpoint.post(&message.encode_to_vec()).map(drop)
    }
}

fn pprof(profile: &Profile, since_ns: u64) -> anyhow::Result<Vec<u8>> {
    let options = Options {
        allocated_since_ns: since_ns,
        ..Options::default()
    };
    let mut body = Vec::new();
    allocsample_export::write(profile, Format::Pprof, &options, &mut body).context("pprof")?;
    Ok(body)
}
