//! Memory of the agent itself.

use super::*;
use crate::ledger::tests::call;

/// At an interval of one byte the agent remembers every live block, which can take more than the blocks.
#[test]
fn memory_of_the_agent_is_not_missing_from_the_profile() {
    let mut profile = blind();
    let seen = |profile: &Profile| {
        let coverage = Coverage::of(profile).expect("a reading");
        (
            coverage.agent_bytes / MIB as f64,
            coverage.seen_bytes / MIB as f64,
        )
    };
    assert_eq!(seen(&profile), (0.0, 16.0));
    // Three quarters of a mapping, which the kernel has joined with somebody else's.
    profile
        .mappings
        .push(call(MappingChange::Own, 1 << 40, 213));
    // Before the reading it was there no more; after it nobody knows.
    profile.mappings.push(call(MappingChange::Own, 1 << 41, 1));
    profile
        .mappings
        .push(call(MappingChange::Unmap, 1 << 41, 1));
    let mut late = call(MappingChange::Own, 1 << 41, 1);
    late.mapped.time_ns = 6;
    profile.mappings.push(late);
    assert_eq!(seen(&profile), (213.0, 16.0));
    let coverage = Coverage::of(&profile).expect("a reading");
    assert_eq!(coverage.share(), 16.0 / (301.0 - 213.0));
    assert_eq!(
        coverage.owners[0],
        (Coverage::UNKNOWN.to_owned(), 71.0 * MIB as f64)
    );
    assert_eq!(
        coverage.line(),
        "coverage   18 %: the sampled heaps account for 16.0 MiB of 88.0 MiB of anonymous memory; 71.0 MiB in mappings without a name; allocsample itself has 213 MiB besides"
    );
    // All of it: nothing is missing.
    profile.mappings[0] = call(MappingChange::Own, 1 << 40, 284);
    let coverage = Coverage::of(&profile).expect("a reading");
    assert_eq!((coverage.is_low(), coverage.warning()), (false, None));
    // Its files are known by their names, and stacks of its threads by the calls.
    profile.mappings.clear();
    profile.memory[0].names[2] = b"/opt/liballocsample.so".to_vec();
    assert_eq!(seen(&profile), (1.0, 16.0));
    profile.memory[0].names[2] = Vec::new();
    profile
        .mappings
        .push(call(MappingChange::OwnThread, (1 << 41) + 4096, 1));
    assert_eq!(seen(&profile), (1.0, 16.0));
    profile
        .mappings
        .push(call(MappingChange::Thread, (1 << 41) + 8192, 1));
    assert_eq!(seen(&profile), (0.5, 16.0));
}
