//! Who is named in a warning.

use super::*;

/// The memory of `blind` that a library without an allocator has mapped, and how much of it a native module has, in MiB. Nobody is
/// known to have mapped the rest.
fn mapped(others: u64, own: u64) -> Profile {
    let mut profile = with_allocator(blind(), "/lib/binding.node", "mimalloc");
    mapped_by(&mut profile, "/lib/libother.so", 1 << 40, others);
    let start = (1 << 40) + others * MIB;
    mapped_by(&mut profile, "/lib/binding.node", start, own);
    profile
}

fn with_runtime(mut profile: Profile, runtime: &str) -> Profile {
    profile.inspected.push(Inspected {
        path: "/usr/bin/editor".to_owned(),
        runtime: runtime.to_owned(),
        ..Inspected::default()
    });
    profile
}

#[test]
fn an_allocator_is_named_only_where_it_may_have_a_twentieth_of_the_memory() {
    // A twentieth of 301 MiB is 15.
    for (others, own, is_named) in [
        (0, 0, true),
        (268, 16, true),
        (268, 0, true),
        (276, 4, false),
        (284, 0, false),
    ] {
        let coverage = Coverage::of(&mapped(others, own)).expect("a reading");
        let warning = coverage.warning().expect("so much is unseen");
        let names = |text: &str| text.contains("binding.node");
        let said = [
            names(&warning),
            names(&coverage.line()),
            coverage.likely.is_some(),
        ];
        assert_eq!(said, [is_named; 3], "{others} {own}: {warning}");
        assert_eq!(coverage.allocators.len(), 1);
    }
}

#[test]
fn why_an_allocator_was_left_alone_is_said_only_where_it_may_have_much() {
    for (others, is_said) in [(0, true), (284, false)] {
        let mut profile = mapped(others, 0);
        profile.notes.push((Note::Embedded, String::new()));
        for file in ["binding.node", "idle.node"] {
            let detail = format!("mimalloc in {file}: it has no symbols");
            profile.notes.push((Note::NotJoined, detail));
        }
        let warning = Coverage::of(&profile).expect("a reading").warning();
        let warning = warning.expect("so much is unseen");
        assert_eq!(warning.contains("it has no symbols"), is_said, "{warning}");
    }
}

#[test]
fn a_runtime_without_a_heap_in_the_profile_is_named_only_where_it_may_have_a_twentieth() {
    for unseen in [0, 14, 16, 100] {
        let mut profile = blind();
        // The rest is malloc's.
        profile.memory[0].mappings[1] = mapping(1 << 40, unseen, 1, 0);
        profile.memory[0].mappings[2].flags = 0;
        let linked = with_runtime(profile.clone(), "LuaJIT");
        let is_named = unseen > 15;
        let lines = runtimes::lines(&linked);
        assert_eq!(lines.len(), usize::from(is_named), "{unseen}: {lines:?}");
        let likely = Coverage::of(&linked).expect("a reading").likely;
        assert_eq!(likely.is_some(), is_named, "{unseen}");
        // Nobody has read how much there is.
        profile.memory.clear();
        assert_eq!(runtimes::lines(&with_runtime(profile, "LuaJIT")).len(), 1);
    }
}
