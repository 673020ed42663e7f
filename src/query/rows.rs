//! The rows of each table, in the order of the columns in `table.rs`.

use allocsample_profile::{HeapId, Profile, Sample, Weights};

use crate::index::{Index, number, stand_in, stand_in_at};
use crate::table::{Sink, Value};

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

pub(crate) fn process<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    let process = &profile.process;
    let (lost_samples, lost_bytes) = profile.lost.samples();
    sink(&[
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

pub(crate) fn samples<E>(profile: &Profile, index: &Index<'_>, sink: Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    let mut weights = Weights::of(profile);
    for (position, sample) in profile.samples.iter().enumerate() {
        let (bytes, objects) = weights.get(sample);
        let stack = index.stack_of(sample);
        let outcome = sample.outcome();
        let type_id = outcome.and_then(|outcome| index.types.get(&(sample.heap, outcome.type_id)));
        let content_hash = profile.content_hashes.get(&position).copied();
        sink(&[
            sample.id.0.into(),
            clock.since_start(sample.time_ns).into(),
            heap(sample.heap),
            u64::from(sample.thread.0).into(),
            sample.address.into(),
            sample.size.into(),
            sample.points.into(),
            bytes.value().into(),
            bytes.variance().into(),
            objects.value().into(),
            objects.variance().into(),
            stack.into(),
            index.charged(stack).into(),
            type_id.copied().into(),
            sample.is_live().into(),
            sample
                .freed()
                .map(|freed| clock.since_start(freed.time_ns))
                .into(),
            lifetime_ns(sample).into(),
            outcome.and_then(|outcome| outcome.survived()).into(),
            content_hash.into(),
            sample.is_carried().into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn ticks<E>(profile: &Profile, index: &Index<'_>, sink: Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for tick in &profile.ticks {
        let stack = index.stack_of(&stand_in(tick));
        let innermost = index.calls(stack).next();
        sink(&[
            clock.since_start(tick.time_ns).into(),
            u64::from(tick.thread.0).into(),
            tick.cpu_ns.into(),
            stack.into(),
            innermost.map(|call| call.function).into(),
        ])?;
    }
    Ok(())
}

fn lifetime_ns(sample: &Sample) -> Option<u64> {
    let freed = sample.freed()?;
    Some(freed.time_ns.saturating_sub(sample.time_ns))
}

pub(crate) fn frees<E>(profile: &Profile, index: &Index, sink: Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    let mut weights = Weights::of(profile);
    for (position, sample) in profile.samples.iter().enumerate() {
        let Some(freed) = sample.freed() else {
            continue;
        };
        let (bytes, objects) = weights.get(sample);
        let stack = profile.free_stack(position);
        let stack = stack.map(|stack| index.stack_of(&stand_in_at(stack)));
        let charged = stack.and_then(|stack| index.charged(stack));
        sink(&[
            sample.id.0.into(),
            clock.since_start(freed.time_ns).into(),
            u64::from(freed.thread.0).into(),
            bytes.value().into(),
            objects.value().into(),
            lifetime_ns(sample).into(),
            stack.into(),
            charged.into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn stacks<E>(index: &Index<'_>, sink: Sink<'_, E>) -> Result<(), E> {
    let (mut text, mut calls) = (String::new(), Vec::new());
    for stack in 1..=index.last_stack() {
        calls.clear();
        calls.extend(index.calls(stack).map(|call| call.function));
        text.clear();
        for &function in calls.iter().rev() {
            if !text.is_empty() {
                text.push(';');
            }
            text.push_str(&index.functions[function as usize - 1].name);
        }
        sink(&[
            stack.into(),
            number(calls.len()).into(),
            index.charged(stack).into(),
            text.as_str().into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn frames<E>(index: &Index<'_>, sink: Sink<'_, E>) -> Result<(), E> {
    for stack in 1..=index.last_stack() {
        for (depth, call) in index.calls(stack).enumerate() {
            sink(&[
                stack.into(),
                number(depth).into(),
                call.function.into(),
                call.file.into(),
                Some(call.line).filter(|&line| line != 0).into(),
            ])?;
        }
    }
    Ok(())
}

pub(crate) fn functions<E>(index: &Index<'_>, sink: Sink<'_, E>) -> Result<(), E> {
    for (position, function) in index.functions.iter().enumerate() {
        sink(&[
            number(position + 1).into(),
            function.name.as_str().into(),
            function.module.as_str().into(),
            function.file.as_deref().into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn types<E>(profile: &Profile, index: &Index<'_>, sink: Sink<'_, E>) -> Result<(), E> {
    for (key, described) in &profile.vm.types {
        sink(&[
            index.types.get(key).copied().into(),
            heap(key.0),
            described.name.as_str().into(),
            described.detail.as_str().into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn threads<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for (id, thread) in &profile.threads {
        sink(&[
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

pub(crate) fn heaps<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    sink(&[
        heap(HeapId::MALLOC),
        "malloc".into(),
        "malloc".into(),
        profile.exact_bytes().into(),
    ])?;
    for (id, registered) in &profile.vm.heaps {
        let kind = registered
            .kind
            .map(|kind| format!("{kind:?}").to_lowercase());
        sink(&[
            heap(*id),
            registered.name.as_str().into(),
            kind.as_deref().into(),
            registered.exact_bytes.into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn gc<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for (position, gc) in profile.vm.gcs.iter().enumerate() {
        sink(&[
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

pub(crate) fn gc_statistics<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    for (position, gc) in profile.vm.gcs.iter().enumerate() {
        for &(statistic, value) in &gc.statistics {
            let described = profile.vm.statistics.get(&(gc.heap, statistic));
            sink(&[
                number(position + 1).into(),
                described.map(|it| it.name.as_str()).into(),
                described.map(|it| it.unit.as_str()).into(),
                value.into(),
            ])?;
        }
    }
    Ok(())
}

pub(crate) fn markers<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for marker in &profile.vm.markers {
        sink(&[
            marker.name.as_str().into(),
            heap(marker.heap),
            if marker.is_phase { "phase" } else { "span" }.into(),
            clock.since_start(marker.begin_ns).into(),
            clock.since_start(marker.end_ns).into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn counters<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    let clock = Clock::of(profile);
    for &(time_ns, bytes) in &profile.resident_bytes {
        sink(&[
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
        sink(&[
            clock.since_start(reading.time_ns).into(),
            heap(reading.heap),
            described.map(|it| it.name.as_str()).into(),
            described.map(|it| it.unit.as_str()).into(),
            reading.value.into(),
        ])?;
    }
    Ok(())
}

pub(crate) fn modules<E>(profile: &Profile, sink: Sink<'_, E>) -> Result<(), E> {
    for (position, module) in profile.modules.iter().enumerate() {
        let build_id: String = module
            .build_id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        sink(&[
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

fn heap(id: HeapId) -> Value<'static> {
    u64::from(id.0).into()
}
