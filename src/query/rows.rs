//! The rows of each table, in the order of the columns in `table.rs`.

use std::ops::Range;

use allocsample_profile::{HeapId, Profile, Sample, Weights};
use allocsample_report::{Coverage, FrameId};

use crate::block::Sink;
use crate::index::{Index, number, stand_in, stand_in_at};
use crate::table::Value;

/// Rows of large tables that are made together: each column reads them again, from a cache.
const AT_ONCE: usize = 4096;

/// The rows `0..count`, [`AT_ONCE`] and then the rest.
fn parts(count: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..count).step_by(AT_ONCE);
    starts.map(move |start| start..count.min(start + AT_ONCE))
}

/// Times count from the start of the profile.
struct Clock(u64);

impl Clock {
    fn of(profile: &Profile) -> Self {
        Self(profile.process.start_ns)
    }

    fn since_start(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.0)
    }
}

pub(crate) fn process<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let process = &profile.process;
    let (lost_samples, lost_bytes) = profile.lost.samples();
    sink.row(&[
        process.pid.into(),
        process.executable.as_str().into(),
        process.command_line.join(" ").as_str().into(),
        process.start_wall_ns.into(),
        process.end_ns.saturating_sub(process.start_ns).into(),
        profile.interval_bytes().into(),
        profile.exact_bytes().into(),
        lost_samples.into(),
        lost_bytes.into(),
    ])
}

pub(crate) fn samples<E>(
    profile: &Profile,
    index: &Index<'_>,
    sink: &mut Sink<'_, E>,
) -> Result<(), E> {
    let clock = Clock::of(profile);
    let mut weights = Weights::of(profile);
    let mut computed = Vec::new();
    for rows in parts(profile.samples.len()) {
        let each = || profile.samples.range(rows.clone());
        computed.clear();
        computed.extend(each().map(|sample| {
            let (bytes, objects) = weights.get(&sample);
            (bytes, objects, index.stack_of(&sample))
        }));
        let type_of = |sample: Sample| {
            let type_id = sample.outcome()?.type_id;
            index.types.get(&(sample.heap, type_id)).copied()
        };
        let survived = |sample: Sample| sample.outcome()?.survived();
        let content_hash = |row| profile.content_hashes.get(&row).copied();
        let computed = || computed.iter();
        sink.rows(rows.len(), |to| {
            to.next(each().map(|it| it.id.0));
            to.next(each().map(|it| clock.since_start(it.time_ns)));
            to.next(each().map(|it| heap(it.heap)));
            to.next(each().map(|it| u64::from(it.thread.0)));
            to.next(each().map(|it| it.address));
            to.next(each().map(|it| it.size));
            to.next(each().map(|it| it.points));
            to.next(computed().map(|(bytes, ..)| bytes.value()));
            to.next(computed().map(|(bytes, ..)| bytes.variance()));
            to.next(computed().map(|(_, objects, _)| objects.value()));
            to.next(computed().map(|(_, objects, _)| objects.variance()));
            to.next(computed().map(|&(.., stack)| stack));
            to.next(computed().map(|&(.., stack)| index.charged(stack)));
            to.next(each().map(type_of));
            to.next(each().map(|it| it.is_live()));
            to.next(each().map(|it| Some(clock.since_start(it.freed()?.time_ns))));
            to.next(each().map(|it| lifetime_ns(&it)));
            to.next(each().map(survived));
            to.next(rows.clone().map(content_hash));
            to.next(each().map(|it| it.is_carried()));
        })?;
    }
    Ok(())
}

pub(crate) fn ticks<E>(
    profile: &Profile,
    index: &Index<'_>,
    sink: &mut Sink<'_, E>,
) -> Result<(), E> {
    let clock = Clock::of(profile);
    let mut frames = Vec::new();
    for tick in &profile.ticks {
        let stack = index.stack_of(&stand_in(tick));
        index.fill(stack, &mut frames);
        sink.row(&[
            clock.since_start(tick.time_ns).into(),
            u64::from(tick.thread.0).into(),
            tick.cpu_ns.into(),
            stack.into(),
            frames.first().map(|&id| index.function_of(id)).into(),
        ])?;
    }
    Ok(())
}

fn lifetime_ns(sample: &Sample) -> Option<u64> {
    let freed = sample.freed()?;
    Some(freed.time_ns.saturating_sub(sample.time_ns))
}

pub(crate) fn frees<E>(
    profile: &Profile,
    index: &Index<'_>,
    sink: &mut Sink<'_, E>,
) -> Result<(), E> {
    let clock = Clock::of(profile);
    let mut weights = Weights::of(profile);
    let mut computed = Vec::new();
    for rows in parts(profile.samples.len()) {
        computed.clear();
        computed.extend(rows.filter_map(|row| {
            let sample = profile.samples.at(row);
            let freed = sample.freed()?;
            let stack = profile.free_stack(row);
            let stack = stack.map(|stack| index.stack_of(&stand_in_at(stack)));
            Some((sample, freed, weights.get(&sample), stack))
        }));
        let each = || computed.iter();
        sink.rows(computed.len(), |to| {
            to.next(each().map(|(sample, ..)| sample.id.0));
            to.next(each().map(|(_, freed, ..)| clock.since_start(freed.time_ns)));
            to.next(each().map(|(_, freed, ..)| u64::from(freed.thread.0)));
            to.next(each().map(|(_, _, (bytes, _), _)| bytes.value()));
            to.next(each().map(|(_, _, (_, objects), _)| objects.value()));
            to.next(each().map(|(sample, ..)| lifetime_ns(sample)));
            to.next(each().map(|&(.., stack)| stack));
            to.next(each().map(|&(.., stack)| index.charged(stack?)));
        })?;
    }
    Ok(())
}

pub(crate) fn stacks<E>(index: &Index<'_>, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let (mut text, mut frames) = (String::new(), Vec::new());
    for stack in 1..=index.last_stack() {
        index.fill(stack, &mut frames);
        text.clear();
        for &id in frames.iter().rev() {
            if !text.is_empty() {
                text.push(';');
            }
            let function = index.function_of(id);
            text.push_str(&index.functions[function as usize - 1].name);
        }
        sink.row(&[
            stack.into(),
            number(frames.len()).into(),
            index.charged(stack).into(),
            text.as_str().into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn frames<E>(index: &Index<'_>, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let (mut rows, mut frames) = (Vec::new(), Vec::new());
    for stack in 1..=index.last_stack() {
        index.fill(stack, &mut frames);
        rows.extend(
            (0_u32..)
                .zip(&frames)
                .map(|(depth, &id)| (stack, depth, id)),
        );
        if rows.len() < AT_ONCE && stack < index.last_stack() {
            continue;
        }
        let each = || rows.iter();
        sink.rows(rows.len(), |to| {
            to.next(each().map(|&(stack, ..)| stack));
            to.next(each().map(|&(_, depth, _)| depth));
            to.next(each().map(|&(.., id)| index.function_of(id)));
            to.next(each().map(|&(.., id)| call_id(id)));
        })?;
        rows.clear();
    }
    Ok(())
}

pub(crate) fn calls<E>(index: &Index<'_>, sink: &mut Sink<'_, E>) -> Result<(), E> {
    for (id, frame) in index.frames_on_stacks() {
        sink.row(&[
            call_id(id).into(),
            index.function_of(id).into(),
            frame.file.as_deref().into(),
            Some(frame.line).filter(|&line| line != 0).into(),
        ])?;
    }
    Ok(())
}

fn call_id(frame: FrameId) -> u32 {
    number(frame.index() + 1)
}

pub(crate) fn functions<E>(index: &Index<'_>, sink: &mut Sink<'_, E>) -> Result<(), E> {
    for (position, function) in index.functions.iter().enumerate() {
        sink.row(&[
            number(position + 1).into(),
            function.name.as_str().into(),
            function.module.as_str().into(),
            function.file.as_deref().into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn types<E>(
    profile: &Profile,
    index: &Index<'_>,
    sink: &mut Sink<'_, E>,
) -> Result<(), E> {
    for (key, described) in &profile.vm.types {
        sink.row(&[
            index.types.get(key).copied().into(),
            heap(key.0),
            described.name.as_str().into(),
            described.detail.as_str().into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn threads<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for (id, thread) in &profile.threads {
        sink.row(&[
            u64::from(id.0).into(),
            thread.tid.into(),
            thread.name.as_str().into(),
            clock.since_start(thread.start_ns).into(),
            thread.end_ns.map(|end_ns| clock.since_start(end_ns)).into(),
            thread.exact_bytes.into(),
            thread.muted_bytes.into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn heaps<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let allowances = profile.allowances(0, u64::MAX);
    let malloc = allowances.of(HeapId::MALLOC);
    sink.row(&[
        heap(HeapId::MALLOC),
        "malloc".into(),
        "malloc".into(),
        profile.exact_bytes_of(HeapId::MALLOC).into(),
        malloc.bytes.into(),
        malloc.objects.into(),
    ])?;
    for (id, registered) in &profile.vm.heaps {
        let allowance = allowances.of(*id);
        let kind = registered
            .kind
            .map(|kind| format!("{kind:?}").to_lowercase());
        sink.row(&[
            heap(*id),
            registered.name.as_str().into(),
            kind.as_deref().into(),
            registered.exact_bytes.into(),
            allowance.bytes.into(),
            allowance.objects.into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn gc<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for (position, gc) in profile.vm.gcs.iter().enumerate() {
        sink.row(&[
            number(position + 1).into(),
            heap(gc.heap),
            format!("{:?}", gc.kind).to_lowercase().as_str().into(),
            clock.since_start(gc.begin_ns).into(),
            clock.since_start(gc.end_ns).into(),
            gc.end_ns.saturating_sub(gc.begin_ns).into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn gc_statistics<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    for (position, gc) in profile.vm.gcs.iter().enumerate() {
        for &(statistic, value) in &gc.statistics {
            let described = profile.vm.statistics.get(&(gc.heap, statistic));
            sink.row(&[
                number(position + 1).into(),
                described.map(|it| it.name.as_str()).into(),
                described.map(|it| it.unit.as_str()).into(),
                value.into(),
            ])?;
        }
    }
    Ok(())
}

pub(crate) fn markers<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for marker in &profile.vm.markers {
        sink.row(&[
            marker.name.as_str().into(),
            heap(marker.heap),
            if marker.is_phase { "phase" } else { "span" }.into(),
            clock.since_start(marker.begin_ns).into(),
            clock.since_start(marker.end_ns).into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn counters<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for &(time_ns, bytes) in &profile.resident_bytes {
        sink.row(&[
            clock.since_start(time_ns).into(),
            Value::Null,
            "resident set".into(),
            "bytes".into(),
            bytes.into(),
        ])?;
    }
    for reading in &profile.vm.values {
        let key = (reading.heap, reading.statistic);
        let described = profile.vm.statistics.get(&key);
        sink.row(&[
            clock.since_start(reading.time_ns).into(),
            heap(reading.heap),
            described.map(|it| it.name.as_str()).into(),
            described.map(|it| it.unit.as_str()).into(),
            reading.value.into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn modules<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    for (position, module) in profile.modules.iter().enumerate() {
        let build_id: String = module
            .build_id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        sink.row(&[
            number(position + 1).into(),
            module.name().into(),
            module.path.as_str().into(),
            Some(build_id.as_str()).filter(|id| !id.is_empty()).into(),
            module.start.into(),
            module.end.into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn coverage<E>(profile: &Profile, sink: &mut Sink<'_, E>) -> Result<(), E> {
    let Some(coverage) = Coverage::of(profile) else {
        return Ok(());
    };
    let likely = coverage.likely.as_deref();
    sink.row(&[
        "the sampled heaps".into(),
        true.into(),
        coverage.seen_bytes.into(),
        Value::Null,
    ])?;
    let known: f64 = coverage.owners.iter().map(|(_, bytes)| bytes).sum();
    for (owner, bytes) in &coverage.owners {
        let likely = likely.filter(|_| owner == Coverage::UNKNOWN);
        sink.row(&[
            owner.as_str().into(),
            false.into(),
            (*bytes).into(),
            likely.into(),
        ])?;
    }
    // Without a list of mappings.
    let rest = coverage.anonymous_bytes - coverage.seen_bytes - known;
    if coverage.owners.is_empty() && rest > 0.0 {
        sink.row(&["not known".into(), false.into(), rest.into(), likely.into()])?;
    }
    Ok(())
}

fn heap(id: HeapId) -> Value<'static> {
    u64::from(id.0).into()
}
