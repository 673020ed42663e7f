//! Makes the runtimes of a process collect their heaps, and reports the result for each.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use allocsample_profile::{Collecting, HEAPS, Profile, request as ring};
use anyhow::{Context, bail};

use super::request::{Asked, Obeyed, Wait, ask, later};
use crate::exit::{self, Ending};
use crate::{output_file, running};

/// How long a runtime may take to reach a safe point and to collect.
const PATIENCE: Duration = Duration::from_secs(10);
/// A program that was idle for this long does not reach a safe point.
const IDLE: Duration = Duration::from_secs(1);

/// Prints the result for every heap. Fails if no heap can be collected on request.
pub fn run(path: &Path) -> anyhow::Result<Ending> {
    let Some(heaps) = collect(path)? else {
        exit::remark(later(running::process_of(path)));
        return Ok(Ending::SUCCESS);
    };
    let is_possible = |(_, state): &(String, Collecting)| *state != Collecting::Impossible;
    if !heaps.iter().any(is_possible) {
        bail!("{}: {}", path.display(), impossible(&heaps));
    }
    output_file::write_stdout(|out| {
        for (name, state) in &heaps {
            writeln!(out, "{name}: {}", in_words(*state))?;
        }
        Ok(())
    })?;
    Ok(Ending::SUCCESS)
}

/// Prints on stderr which heaps were not collected; the snapshot is taken anyway.
pub fn before_snapshot(path: &Path) -> anyhow::Result<()> {
    match collect(path)? {
        None => exit::remark(later(running::process_of(path))),
        Some(heaps) if heaps.is_empty() => exit::remark(impossible(&heaps)),
        Some(heaps) => {
            for (name, state) in heaps {
                if state != Collecting::Done {
                    exit::remark(format!("{name}: {}", in_words(state)));
                }
            }
        }
    }
    Ok(())
}

fn impossible(heaps: &[(String, Collecting)]) -> String {
    match heaps {
        [] => "it has no heap with a garbage collector".to_owned(),
        heaps => {
            let names: Vec<&str> = heaps.iter().map(|(name, _)| name.as_str()).collect();
            format!(
                "{}: this runtime's bridge cannot be asked to collect",
                names.join(", ")
            )
        }
    }
}

fn in_words(state: Collecting) -> &'static str {
    match state {
        Collecting::Done => "collected",
        Collecting::Asked => "requested, not yet done: the program has not reached a safe point",
        Collecting::Declined => "not collected: its collector is off, or it has none now",
        Collecting::Impossible => "cannot be asked to collect",
    }
}

/// The results for all heaps, once all are known; `None` if the process has not seen the request.
fn collect(path: &Path) -> anyhow::Result<Option<Vec<(String, Collecting)>>> {
    let asked = Asked::plain(ring::COLLECT);
    let Some(obeyed) = ask(path, &asked, Wait::of(PATIENCE, IDLE))? else {
        return Ok(None);
    };
    let mut wait = Wait::of(PATIENCE, IDLE);
    let states = loop {
        let states = states(&obeyed).with_context(|| path.display().to_string())?;
        let is_open = states.iter().any(|(_, state)| *state == Collecting::Asked);
        if !is_open || !wait.goes_on(|| running::process_of(path)) {
            break states;
        }
    };
    if states.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let profile = Profile::open(path).with_context(|| path.display().to_string())?;
    let heaps = &profile.vm.heaps;
    let named = states.into_iter().map(|(id, state)| {
        let heap = heaps.iter().find(|(heap, _)| usize::from(heap.0) == id);
        let name = heap.map_or_else(|| format!("heap {id}"), |(_, heap)| heap.name.clone());
        (name, state)
    });
    Ok(Some(named.collect()))
}

/// By the heaps' numbers.
fn states(obeyed: &Obeyed) -> std::io::Result<Vec<(usize, Collecting)>> {
    let mut bytes = [0; 8 * HEAPS];
    obeyed.file.read_exact_at(&mut bytes, ring::COLLECTING)?;
    let words = bytes.chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        u64::from_le_bytes(word)
    });
    let states = words
        .enumerate()
        .filter_map(|(id, word)| Some((id, Collecting::from_word(word, obeyed.generation)?)));
    Ok(states.collect())
}
