//! Sites that grow together: the parts of one retained object, say a request, its dictionary and its strings.
//!
//! Two sites that leak belong together if one function near both of them called both, and what they keep began and went on
//! alike. Samples are too thin to see that each object has its parts, so the course is compared by when growth began and by
//! its present share.

use crate::findings::Finding;
use crate::verdict::{Reason, Verdict};

/// Frames from the function that is charged to the one that called both, at most. Between two functions of Python or
/// JavaScript there are up to five of the interpreter.
pub(crate) const NEAR: usize = 24;
/// The common callers of a whole program (its main loop) do not count: at least so many frames below them.
pub(crate) const SHARE_OF_STACK: f64 = 0.5;
/// Onsets that differ by less than this part of the run are the same.
const SAME_ONSET: f64 = 0.1;

/// Gives one number to those that belong together.
pub(crate) fn assign(findings: &mut [Finding], most: usize) {
    let is_candidate =
        |finding: &Finding| matches!(finding.verdict, Verdict::Leak | Verdict::PossibleLeak);
    let leaks: Vec<usize> = (0..findings.len())
        .filter(|&place| is_candidate(&findings[place]))
        .take(most)
        .collect();
    let mut next = 0;
    for (rank, &place) in leaks.iter().enumerate() {
        if findings[place].group.is_some() {
            continue;
        }
        let others: Vec<usize> = leaks[rank + 1..]
            .iter()
            .copied()
            .filter(|&other| findings[other].group.is_none())
            .filter(|&other| belong_together(&findings[place], &findings[other]))
            .collect();
        if others.is_empty() {
            continue;
        }
        for member in others.into_iter().chain([place]) {
            findings[member].group = Some(next);
        }
        next += 1;
    }
}

fn belong_together(one: &Finding, other: &Finding) -> bool {
    // A few samples have no course: those sites were found by what they are together.
    let has_course = |finding: &Finding| finding.reason != Reason::Together;
    let is_alike = !has_course(one) || !has_course(other) || have_one_course(one, other);
    is_alike && have_a_near_caller(&one.stack, &other.stack)
}

fn have_a_near_caller(one: &[String], other: &[String]) -> bool {
    let common = one.iter().rev().zip(other.iter().rev());
    let common = common.take_while(|(a, b)| a == b).count();
    let is_near = |stack: &[String]| {
        let above = stack.len() - common;
        above <= NEAR && common as f64 >= SHARE_OF_STACK * stack.len() as f64
    };
    common > 1 && is_near(one) && is_near(other)
}

fn have_one_course(one: &Finding, other: &Finding) -> bool {
    let run_s = one.ages_s[3].max(other.ages_s[3]);
    let onset = |finding: &Finding| finding.onset_s.unwrap_or(0.0);
    let is_onset_same = (onset(one) - onset(other)).abs() <= SAME_ONSET * run_s.max(1e-9);
    // Present over average growth: both steady, or both faster.
    let course = |finding: &Finding| {
        let per = finding.growth_per_s.abs().max(f64::MIN_POSITIVE);
        (
            finding.present_per_s_95.0 / per,
            finding.present_per_s_95.1 / per,
        )
    };
    let ((low, high), (other_low, other_high)) = (course(one), course(other));
    is_onset_same && low <= other_high && other_low <= high
}
