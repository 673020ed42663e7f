//! A Go program is not attached to: this command reads the heap profile that its runtime keeps, until somebody ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use allocsample_goheap::{Runtime, Since};
use allocsample_profile::{Seen, finish_with};
use allocsample_sampling::IntervalSetting;
use anyhow::{Context, bail};

use super::super::run::{memory::MemoryWatch, output::Template};
use crate::args::{self, Attach};
use crate::exit::{self, Ending, Usage};
use crate::go_heap::{self, GoHeap, Rate};

/// Counts change when a collection ends, which is seldom more often.
const PERIOD: Duration = Duration::from_secs(1);

/// The Go program of this process, if there is one: an agent would see what C code allocates.
pub fn find(options: &Attach) -> anyhow::Result<Option<Runtime>> {
    let pid = options.pid;
    let is_refused = options.runtime == Some(args::Runtime::None);
    let Some(number) = u32::try_from(pid).ok().filter(|_| !is_refused) else {
        return Ok(None);
    };
    if !go_heap::is_go(number) {
        return Ok(None);
    }
    Runtime::find(number).or_else(|error| bail!("process {pid}: a Go program, but {error}"))
}

/// Records until the process ends, or this command is told to end.
pub fn record(options: &Attach, runtime: Runtime) -> anyhow::Result<Ending> {
    refuse_options_of_the_agent(options)?;
    let template = Template::new(options.output.as_deref())?;
    template.check()?;
    let pid = options.pid;
    let named = || format!("process {pid}");
    let rate = rate(options, &runtime).with_context(named)?;
    let end = super::until_told()?;
    let mut heap = GoHeap::begin(&template, pid.unsigned_abs(), runtime, Since::Attach, &rate)
        .with_context(named)?;
    exit::remark(format_args!(
        "process {pid}: a Go program, read from outside{} until it ends, or until Ctrl-C: {}",
        remark(&rate),
        heap.path.display()
    ));
    if heap.runtime.is_dynamic() {
        exit::remark("blocks of malloc are not included; `--runtime none` samples these instead");
    }
    let watch = MemoryWatch::start(pid.unsigned_abs());
    let recorded = follow(options, &mut heap, &end);
    // Also after a failure: the process is as it was.
    let restored = rate.restore(&heap.runtime);
    let readings = watch.end();
    let is_gone = recorded?;
    let GoHeap {
        buckets,
        mut recorder,
        path,
        ..
    } = heap;
    if !is_gone {
        restored.with_context(named)?;
        recorder.leave(&buckets, go_heap::now())?;
    }
    let samples = recorder.samples();
    drop(recorder);
    let seen = Seen {
        memory: Some(&readings),
        ..Seen::default()
    };
    finish_with(&path, true, &seen).with_context(|| path.display().to_string())?;
    super::say(format_args!("{}: {samples} samples", path.display()))
}

/// Whether the process has ended.
fn follow(options: &Attach, heap: &mut GoHeap, end: &AtomicBool) -> anyhow::Result<bool> {
    let begin = Instant::now();
    let until = options
        .seconds
        .map(|seconds| begin + Duration::from_secs(seconds));
    loop {
        let is_last = end.load(Ordering::Relaxed) || until.is_some_and(|it| Instant::now() >= it);
        if !heap
            .read()
            .with_context(|| format!("process {}", options.pid))?
        {
            return Ok(true);
        }
        if is_last {
            return Ok(false);
        }
        let next = Instant::now() + PERIOD;
        let next = until.map_or(next, |it| it.min(next));
        super::pause(next, end);
    }
}

fn rate(options: &Attach, runtime: &Runtime) -> anyhow::Result<Rate> {
    let asked_for = match go_heap::interval(options.capture.interval.as_deref())? {
        None => None,
        Some(IntervalSetting::Every(interval)) => Some(interval.bytes()),
        Some(IntervalSetting::Off) => {
            return Err(Usage("--interval off: there would be nothing to read".into()).into());
        }
    };
    Ok(Rate::of(runtime, asked_for)?)
}

fn remark(rate: &Rate) -> String {
    let Rate { before, wanted } = rate;
    match before == wanted {
        true => String::new(),
        false => format!(", with runtime.MemProfileRate {wanted} in place of {before}"),
    }
}

fn refuse_options_of_the_agent(options: &Attach) -> Result<(), Usage> {
    let names = options.capture.settings().map(|(name, _)| name);
    match go_heap::options_of_the_agent(names).next() {
        None => Ok(()),
        Some(option) => Err(Usage(format!(
            "{option}: not for a Go program, which samples itself; of the options only --interval, --output and --seconds apply"
        ))),
    }
}
