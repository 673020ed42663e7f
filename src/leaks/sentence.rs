//! A verdict in plain words.

use allocsample_report::units;

use crate::findings::Finding;
use crate::pace::rate;
use crate::verdict::{Reason, Verdict};

/// What a sentence states besides the finding.
pub(crate) struct Told {
    /// How long blocks were watched.
    pub observed_s: f64,
    /// The shortest and the longest sampling interval of the recording.
    pub interval_range_bytes: (u64, u64),
    /// Samples that the verdict would rest on.
    pub kept: usize,
}

/// Samples with which growth at a steady rate is decided.
const ENOUGH: usize = 24;
/// Advice goes no lower than this.
const LEAST_INTERVAL: u64 = 4 << 10;
/// Of blocks of so many intervals 95 % are sampled: 1 - e^-3.
const ALL_SAMPLED: f64 = 3.0;

/// CPython's heap, and the types of which it keeps freed objects for the next function that makes one. It tells nobody, so
/// a block stays with the function that allocated it first. All versions from 3.8 to 3.15 do that with these types.
const RECYCLED: (&str, [&str; 5]) = ("python", ["dict", "dict keys", "float", "list", "tuple"]);

/// The verdict in plain words, with what may be wrong about its function.
pub(crate) fn sentence(finding: &Finding, told: &Told) -> String {
    let mut text = judgement(finding, told);
    let is_open = finding.verdict == Verdict::Undecided && !is_quiet(finding);
    if (finding.verdict.is_finding() || is_open) && is_recycled(finding) {
        text += " CPython reuses freed objects of this type, so these may be objects of another function: compare with tracemalloc.";
    }
    text
}

fn is_recycled(finding: &Finding) -> bool {
    let (heap, types) = RECYCLED;
    let type_name = finding.type_name.as_deref();
    finding.heap.as_deref() == Some(heap) && type_name.is_some_and(|name| types.contains(&name))
}

fn judgement(finding: &Finding, told: &Told) -> String {
    let live = units::bytes(finding.live.value());
    // Of what came in a burst nothing grows now.
    let pace = match finding.present_per_s <= 0.0 {
        true => format!("{} on average", rate(finding.growth_per_s)),
        false => rate(finding.present_per_s),
    };
    let seen = units::duration(told.observed_s);
    let percent = |share: f64| format!("{:.*} %", usize::from(share < 0.1), 100.0 * share);
    let usual = finding.usual_age_s.map(units::duration).unwrap_or_default();
    let since = match finding.onset_s {
        Some(onset_s) => format!(" since {} after the start", units::duration(onset_s)),
        None => String::new(),
    };
    match (finding.verdict, finding.reason) {
        (Verdict::Leak, _) => format!(
            "{} of the bytes allocated here were never freed; 90 % of the freed blocks lived for at most {usual}. {live} so far, growing by {pace}{since}. Only the program knows whether it keeps them on purpose.",
            percent(finding.never_freed)
        ),
        (Verdict::PossibleLeak, Reason::CourseUnknown) => format!(
            "{} of the bytes allocated here were not freed; 90 % of the freed blocks lived for at most {usual}. {live} so far, growing by {pace}{since}. {} samples are too few to show whether growth is slowing.",
            percent(finding.never_freed),
            told.kept
        ),
        (Verdict::PossibleLeak, Reason::Together) => format!(
            "Too few samples for a verdict of its own ({}), but the memory allocated below one of its callers grows and is not freed: {live} here, growing by {pace}.",
            finding.live.samples()
        ),
        (Verdict::PossibleLeak, Reason::BeganLate) => format!(
            "Grows by {pace}{since}, and blocks older than usual ({usual}) are not freed: {live} so far. This is a leak, or a backlog that may still drain."
        ),
        (Verdict::PossibleLeak, _) => format!(
            "{} allocated here was freed in {seen}: {live} so far, growing by {pace}{since}. This is a leak, or a cache or table that keeps its entries longer than that.",
            // The list that keeps the blocks may be among them: its old copy is freed whenever it grows.
            if finding.freed_by.is_empty() {
                "Nothing"
            } else {
                "Next to nothing"
            },
        ),
        (Verdict::Growing, Reason::FreedAtEnd) => format!(
            "Grows by {pace} while the program runs, and is freed only when it ends{}.",
            match finding.freed_by.first() {
                Some((thread, _)) => format!(", by {thread}"),
                None => String::new(),
            }
        ),
        (Verdict::Growing, Reason::Slowing) => format!(
            "Growth is slowing: {} now, {} on average. {live} so far.",
            rate(finding.present_per_s),
            rate(finding.growth_per_s)
        ),
        (Verdict::Growing, _) => format!(
            "Grows by {pace}, but old blocks are freed too: {live} so far. The load may have grown, or a cache is filling."
        ),
        (Verdict::Undecided, Reason::UnseenFrees) => format!(
            "Seems to grow by {pace}, but blocks that were not recorded are freed unseen, and the growth of the process does not confirm it. A full cache looks the same until its first recorded entries are replaced: record for longer than they live."
        ),
        (Verdict::Undecided, Reason::Unexamined) => format!(
            "Seems to grow by {pace}, but no full collection in the second half of the recording has looked at these objects: they may be garbage. Record until a full collection, or force one shortly before the end."
        ),
        (Verdict::Undecided, Reason::NoOldBlocks) => format!(
            "Grows by {pace}, but blocks live for {usual}, too long to show in {seen} whether old ones are freed: record longer."
        ),
        (Verdict::Undecided, _) if is_quiet(finding) => format!(
            "Nothing new in the last third of the run: {live} in {} sample{} came before, and stayed. If no more follows, it is no leak: a longer recording shows that.",
            finding.live.samples(),
            if finding.live.samples() == 1 { "" } else { "s" },
        ),
        (Verdict::Undecided, _) => format!(
            "May be growing ({pace}), but there is not enough evidence yet: {live} in {} sample{}. {}.",
            finding.live.samples(),
            if finding.live.samples() == 1 { "" } else { "s" },
            advice(finding, told)
        ),
        (Verdict::CacheLike, Reason::Slowing) => {
            let rate_now = rate(finding.present_per_s);
            format!("Grew during the run and has nearly stopped: {live}, {rate_now} now.")
        }
        (Verdict::CacheLike, _) => format!("Grew during the run and has stopped: {live}."),
        (Verdict::StartUp, _) => format!("Allocated at start-up and still held: {live}."),
        (Verdict::Steady, Reason::Swings) => {
            format!("Rises and falls: {live} now, no more than before.")
        }
        (Verdict::Steady, _) => format!("Holds about {live}, no more than before."),
    }
}

/// Whether no block came or went in the last third of the run: more samples of the others would show no growth.
fn is_quiet(finding: &Finding) -> bool {
    finding.onset_s.is_none() && finding.present_per_s_95.1 <= 0.0
}

/// How to get enough samples for a decision.
fn advice(finding: &Finding, told: &Told) -> String {
    let kept = told.kept.max(1);
    let factor = ENOUGH.div_ceil(kept).max(2);
    let longer = units::duration(told.observed_s * (factor - 1) as f64);
    let (shortest, longest) = told.interval_range_bytes;
    let interval = shortest / factor as u64;
    // Of large blocks nearly all are sampled already.
    let each = finding.live.value() / finding.live.samples().max(1) as f64;
    let is_large = each >= ALL_SAMPLED * longest as f64;
    if interval < LEAST_INTERVAL || is_large {
        return format!("Record about {longer} longer");
    }
    let interval = 1u64 << interval.ilog2();
    format!(
        "Rerun with --interval {}K, or record about {longer} longer",
        interval >> 10
    )
}
