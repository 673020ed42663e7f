//! What settings mean, and which are refused.

use super::*;
use std::string::String;
use std::{borrow::ToOwned, format};

fn read(pairs: &'static [(&str, &str)]) -> Result<Config, ConfigError<'static>> {
    Config::read(
        |name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.as_bytes())
        },
        b"/tmp",
    )
}

#[test]
fn defaults() {
    let config = read(&[]).ok().unwrap();
    assert_eq!(config.interval, Interval::new(524_288));
    assert_eq!(config.on_full, OnFull::Drop);
    assert_eq!(config.unwind, Unwind::Auto);
    assert_eq!(config.bridges, Bridges::Auto);
    assert!(!config.is_stopped && config.follow_children);
    assert!(!config.is_watched() && !config.is_attended() && !config.is_rotated());
    assert_eq!(
        config.output_path(7, b"vm", 0, 0).as_bytes(),
        b"/tmp/allocsample.vm.7.allocsample"
    );
    assert_eq!(
        config.output_path(7, b"vm", 0, 2).as_bytes(),
        b"/tmp/allocsample.vm.7.2.allocsample"
    );
}

#[test]
fn each_choice_has_its_meaning() {
    let unwind = |pairs| read(pairs).ok().unwrap().unwind;
    for (pairs, meant) in [
        (&[("ALLOCSAMPLE_UNWIND", "auto")] as &[_], Unwind::Auto),
        (&[("ALLOCSAMPLE_UNWIND", "dwarf")], Unwind::Auto),
        (&[("ALLOCSAMPLE_UNWIND", "fp")], Unwind::FramePointers),
        (&[("ALLOCSAMPLE_UNWIND", "none")], Unwind::None),
        (&[("ALLOCSAMPLE_UNWIND", "verify")], Unwind::Verify),
    ] {
        assert_eq!(unwind(pairs), meant);
    }
    let bridges = |pairs| read(pairs).ok().unwrap().bridges;
    assert_eq!(bridges(&[("ALLOCSAMPLE_RUNTIME", "pypy")]), Bridges::Pypy);
    assert_eq!(bridges(&[("ALLOCSAMPLE_RUNTIME", "none")]), Bridges::None);
    let config = read(&[]).ok().unwrap();
    assert!(
        config.records_mappings && !config.joins_embedded && config.inlining == Inlining::Named
    );
    assert!(!config.samples_objects);
    let changed = read(&[
        ("ALLOCSAMPLE_MAPPINGS", "off"),
        ("ALLOCSAMPLE_EMBEDDED", "on"),
        ("ALLOCSAMPLE_OBJECTS", "on"),
        ("ALLOCSAMPLE_INLINING", "off"),
        ("ALLOCSAMPLE_START", "off"),
        ("ALLOCSAMPLE_CHILDREN", "ignore"),
        ("ALLOCSAMPLE_MAX_OVERHEAD", "2%"),
    ]);
    let changed = changed.ok().unwrap();
    assert!(
        !changed.records_mappings && changed.joins_embedded && changed.inlining == Inlining::Off
    );
    assert!(changed.is_stopped && !changed.follow_children && changed.samples_objects);
    assert_eq!(changed.budget().overhead, Some(0.02));
    // What is neither is refused, and the message has the setting's name.
    for pair in [
        &[("ALLOCSAMPLE_MAPPINGS", "yes")],
        &[("ALLOCSAMPLE_EMBEDDED", "1")],
        &[("ALLOCSAMPLE_OBJECTS", "yes")],
        &[("ALLOCSAMPLE_INLINING", "none")],
    ] {
        let [(name, _)] = *pair;
        assert_eq!(read(pair).err().map(|error| error.name), Some(name));
    }
}

#[test]
fn a_budget_is_watched_and_a_limit_or_a_rotation_attended() {
    let is = |pair: &'static [(&str, &str)]| {
        let config = read(pair).ok().unwrap();
        (
            config.is_watched(),
            config.is_attended(),
            config.is_rotated(),
        )
    };
    assert_eq!(
        is(&[("ALLOCSAMPLE_MAX_OVERHEAD", "1%")]),
        (true, true, false)
    );
    let rate = is(&[("ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND", "5")]);
    assert_eq!(rate, (true, true, false));
    assert_eq!(is(&[("ALLOCSAMPLE_MAX_LIVE", "100")]), (false, true, false));
    assert_eq!(
        is(&[("ALLOCSAMPLE_ROTATE_EVERY", "1h")]),
        (false, true, true)
    );
    assert_eq!(
        is(&[("ALLOCSAMPLE_ROTATE_SIZE", "1M")]),
        (false, true, true)
    );
    assert_eq!(is(&[("ALLOCSAMPLE_SIGNAL", "USR1")]), (false, true, false));
    assert_eq!(is(&[("ALLOCSAMPLE_MAX_SIZE", "1M")]), (false, false, false));
}

#[test]
fn an_interval_that_cannot_be_read_says_what_is_expected() {
    let expected = |value| {
        let lookup = |name: &str| (name == "ALLOCSAMPLE_INTERVAL").then_some(value);
        Config::read(lookup, b"/").err().unwrap().expected
    };
    assert!(expected(b"0").contains("ambiguous"));
    assert!(expected(b"12Q").contains("unknown unit"));
    assert!(expected(b"x").contains("expected bytes"));
    assert!(expected(b"99999999999T").contains("longest"));
}

#[test]
fn every_allocation_waits_unless_told_otherwise() {
    assert_eq!(
        read(&[("ALLOCSAMPLE_INTERVAL", "1")]).ok().unwrap().on_full,
        OnFull::Wait
    );
    let config = read(&[
        ("ALLOCSAMPLE_INTERVAL", "1"),
        ("ALLOCSAMPLE_ON_FULL", "drop"),
    ]);
    assert_eq!(config.ok().unwrap().on_full, OnFull::Drop);
}

#[test]
fn what_cannot_be_read_is_named() {
    for (name, value) in [
        ("ALLOCSAMPLE_INTERVAL", "0"),
        ("ALLOCSAMPLE_INTERVAL", "12Q"),
        ("ALLOCSAMPLE_SAMPLING", "uniform"),
        ("ALLOCSAMPLE_SEED", "-1"),
        ("ALLOCSAMPLE_MAX_DEPTH", "0"),
        ("ALLOCSAMPLE_MAX_DEPTH", "5000"),
        ("ALLOCSAMPLE_ON_FULL", ""),
        ("ALLOCSAMPLE_MAX_OVERHEAD", "1"),
        ("ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND", "0"),
        ("ALLOCSAMPLE_MAX_SIZE", "100K"),
        ("ALLOCSAMPLE_WINDOW", "10"),
        ("ALLOCSAMPLE_ROTATE_EVERY", "0s"),
        ("ALLOCSAMPLE_ROTATE_SIZE", "1K"),
        ("ALLOCSAMPLE_KEEP", "some"),
        ("ALLOCSAMPLE_SIGNAL", "KILL"),
        ("ALLOCSAMPLE_TIME_HZ", "0"),
        ("ALLOCSAMPLE_TIME_HZ", "10001"),
    ] {
        let error = Config::read(|key| (key == name).then_some(value.as_bytes()), b"/")
            .err()
            .unwrap();
        assert_eq!((error.name, error.value), (name, value.as_bytes()));
    }
}

#[test]
fn budgets_are_read_and_an_interval_that_was_asked_for_is_the_shortest() {
    let config = read(&[
        ("ALLOCSAMPLE_MAX_OVERHEAD", "0.5%"),
        ("ALLOCSAMPLE_MAX_SAMPLES_PER_SECOND", "1000"),
        ("ALLOCSAMPLE_MAX_SIZE", "64M"),
        ("ALLOCSAMPLE_MAX_LIVE", "20000"),
    ]);
    let config = config.ok().unwrap();
    assert_eq!(config.max_overhead_ppm, Some(5000));
    assert_eq!(config.max_samples_per_second, Some(1000));
    assert_eq!(config.max_size_bytes, Some(64 << 20));
    assert_eq!(config.max_live, Some(20_000));
    assert!(read(&[("ALLOCSAMPLE_MAX_LIVE", "10")]).is_err());
    assert_eq!(config.shortest_interval().bytes(), 4096);
    // 2^30 over the rate, rounded up to a quarter of an octave.
    assert_eq!(config.first_interval().unwrap().bytes(), 1_246_974);
    let config = read(&[("ALLOCSAMPLE_INTERVAL", "1M")]).ok().unwrap();
    assert_eq!(config.shortest_interval().bytes(), 1 << 20);
    assert_eq!(config.first_interval().unwrap().bytes(), 1 << 20);
    assert!(!config.is_watched());
}

#[test]
fn rotation_is_read() {
    let config = read(&[("ALLOCSAMPLE_WINDOW", "10m")]).ok().unwrap();
    assert_eq!(config.rotate_every_ms, Some(150_000));
    assert_eq!(config.keep_parts, Some(4));
    let config = read(&[
        ("ALLOCSAMPLE_WINDOW", "1h"),
        ("ALLOCSAMPLE_ROTATE_EVERY", "1m"),
        ("ALLOCSAMPLE_KEEP", "60"),
    ]);
    let config = config.ok().unwrap();
    assert_eq!(config.rotate_every_ms, Some(60_000));
    assert_eq!(config.keep_parts, Some(60));
    let config = read(&[
        ("ALLOCSAMPLE_ROTATE_EVERY", "1d"),
        ("ALLOCSAMPLE_MAX_SIZE", "64M"),
    ]);
    assert_eq!(config.ok().unwrap().rotate_size_bytes, Some(16 << 20));
    assert!(
        !read(&[("ALLOCSAMPLE_MAX_SIZE", "64M")])
            .ok()
            .unwrap()
            .is_rotated()
    );
}

#[test]
fn the_template_is_filled_in() {
    let config = read(&[("ALLOCSAMPLE_OUTPUT", "/var/%n-%p-%t-%%-%x.prof")])
        .ok()
        .unwrap();
    assert_eq!(
        config.output_path(12, b"vm", 3_000_000_000, 1).as_bytes(),
        b"/var/vm-12-3-%-%x.prof.1"
    );
}

#[test]
fn unknown_settings_are_those_that_nobody_looks_for() {
    let asked = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let config = Config::read(
        |name| {
            asked.borrow_mut().insert(name.to_owned());
            None
        },
        b"/tmp",
    );
    assert!(config.is_ok());
    let known = unknown::NAMES.map(|name| format!("ALLOCSAMPLE_{name}"));
    assert_eq!(asked.into_inner(), known.into_iter().collect());

    let among = |entries: &[&str]| {
        let found = UnknownSetting::among(entries.iter().map(|entry| entry.as_bytes()));
        found.map(|unknown| String::from_utf8_lossy(unknown.name()).into_owned())
    };
    let own = [
        "PATH=/bin",
        "ALLOCSAMPLE_INTERVAL=1",
        "ALLOCSAMPLE_LIBRARY=x",
        "ALLOCSAMPLE_TEST_PYTHON=x",
        "ALLOCSAMPLER=x",
    ];
    assert_eq!(among(&own), None);
    for (entry, name) in [
        ("ALLOCSAMPLE_OUT=x", "ALLOCSAMPLE_OUT"),
        ("ALLOCSAMPLE_INTERVALS=1", "ALLOCSAMPLE_INTERVALS"),
        ("ALLOCSAMPLE_", "ALLOCSAMPLE_"),
        ("ALLOCSAMPLE_INTERVAL", "ALLOCSAMPLE_INTERVAL"),
    ] {
        assert_eq!(among(&[own[0], own[1], entry]).as_deref(), Some(name));
    }
    let long = format!("ALLOCSAMPLE_{}=1", "X".repeat(100));
    assert_eq!(among(&[&long]).unwrap().len(), 64);
}
