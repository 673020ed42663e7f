//! Python's own regression tests, with and without the agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use super::{Agent, Outcome, Run};

/// What became of each test case, from regrtest's JUnit file.
fn verdicts(file: &Path) -> BTreeMap<String, String> {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut verdicts = BTreeMap::new();
    for case in text.split("<testcase ").skip(1) {
        let name = case
            .split("name=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .expect("a name");
        let case = case.split("</testcase>").next().unwrap_or_default();
        let failed = case.contains("<failure") || case.contains("<error");
        let verdict = if failed {
            "failed"
        } else if case.contains("<skipped") {
            "skipped"
        } else {
            "passed"
        };
        verdicts.insert(name.to_owned(), verdict.to_owned());
    }
    verdicts
}

/// What most of them are.
fn majority(verdicts: impl Iterator<Item = String>) -> Option<String> {
    let mut counts = BTreeMap::<String, usize>::new();
    for verdict in verdicts {
        *counts.entry(verdict).or_default() += 1;
    }
    counts
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map(|(verdict, _)| verdict)
}

/// `regrtest` is a Python that is told to run tests; each of its cases, which are more than `least`, must end under the
/// agent as it does without.
///
/// Some of a runtime's cases race by themselves (PyPy's `test_1_join_on_shutdown` fails in 4 of 300 runs without the
/// agent): one that ended otherwise is run three times more, alone, both ways, and must end alike in two of the three.
#[track_caller]
pub fn assert_same_verdicts(regrtest: &Run, agent: &Agent, least: usize) {
    let regrtest = regrtest.clone().args(&["--junit-xml", "verdicts.xml"]);
    let bare = thread::spawn({
        let regrtest = regrtest.clone();
        move || regrtest.bare()
    });
    let observed = regrtest.observed(agent);
    let bare = bare.join().expect("a run without the agent");
    let with = verdicts(&observed.work().join("verdicts.xml"));
    let without = verdicts(&bare.work().join("verdicts.xml"));
    let mut differing = without
        .iter()
        .filter(|(name, verdict)| with.get(*name) != Some(verdict))
        .peekable();
    if differing.peek().is_none() {
        assert_eq!(observed.status, bare.status, "{}", observed.text());
    }
    for (name, verdict) in differing {
        let alone = regrtest.clone().args(&["-v", "-m", name]);
        let verdict_of = |run: &Outcome| {
            let mut verdicts = verdicts(&run.work().join("verdicts.xml"));
            verdicts.remove(name).unwrap_or_else(|| "absent".to_owned())
        };
        let plain = majority((0..3).map(|_| verdict_of(&alone.bare())));
        let again: Vec<_> = (0..3).map(|_| alone.observed(agent)).collect();
        let ours = majority(again.iter().map(verdict_of));
        assert!(
            plain == ours,
            "{name}: {verdict} without, {} with; alone {plain:?} without, {ours:?} with\n{}\n{}",
            with.get(name).map_or("absent", |verdict| verdict),
            observed.text(),
            again.iter().map(|again| again.text()).collect::<String>()
        );
    }
    assert!(without.len() > least, "only {} tests ran", without.len());
}
