//! Promise: no name that another program has chosen can act on a terminal, a browser or a reader of lines.

use std::fs;

use crate::support::Room;
use crate::support::hostile;
use crate::support::room::{stderr, stdout};
use allocsample_export::{Format, Options};
use allocsample_profile::{Profile, is_plain};
use proptest::prelude::*;
use quick_xml::events::Event;

/// Titles, colours, cursors and clipboards of terminals, in both alphabets, lines that are more than one, text that reads
/// the other way round, and what ends an element or a cell.
const NASTY: &str =
    "\x1b]0;t\x07\x1b[2J\u{9b}31m\r\n\0\t\x7f\u{202e}\u{2066}\u{feff}\u{fffe}</script>]]>,\"';|&";

/// Commands that write text to stdout.
const COMMANDS: [&[&str]; 17] = [
    &["report", "x.allocsample"],
    &["report", "x.allocsample", "--by", "type"],
    &[
        "report",
        "x.allocsample",
        "--by",
        "thread",
        "--format",
        "csv",
    ],
    &[
        "report",
        "x.allocsample",
        "--by",
        "module",
        "--format",
        "csv",
    ],
    &["report", "x.allocsample", "--by", "heap"],
    &["report", "x.allocsample", "--by", "site"],
    &["report", "x.allocsample", "--tree"],
    &["report", "x.allocsample", "--format", "json"],
    &["leaks", "x.allocsample"],
    &["leaks", "x.allocsample", "--format", "json"],
    &["leaks", "x.allocsample", "--format", "csv"],
    &["diff", "x.allocsample", "y.allocsample"],
    &["diff", "x.allocsample", "y.allocsample", "--format", "csv"],
    &[
        "query",
        "x.allocsample",
        "SELECT * FROM frames, threads, modules",
    ],
    &[
        "query",
        "x.allocsample",
        "SELECT * FROM functions, types",
        "--format",
        "csv",
    ],
    &["top", "x.allocsample"],
    &["convert", "x.allocsample", "--to", "html", "-o", "-"],
];

/// Line breaks are the only characters of a text that act. Some formats indent by tabs.
#[track_caller]
fn assert_plain(text: &str, context: &str) {
    let bad = text
        .chars()
        .find(|&c| !is_plain(c) && !matches!(c, '\n' | '\t'));
    if let Some(bad) = bad {
        let line = text.lines().find(|line| line.contains(bad));
        panic!("{context}: {bad:?} in {line:?}");
    }
}

#[test]
fn no_command_prints_a_name_that_acts() {
    let room = Room::without_agent();
    fs::write(room.path("x.allocsample"), hostile::named(NASTY)).expect("a file");
    fs::write(room.path("y.allocsample"), hostile::named("plain")).expect("a file");
    for command in COMMANDS {
        let output = room.output(command);
        let context = format!("{command:?}");
        if command[0] != "top" {
            assert_eq!(
                output.status.code(),
                Some(0),
                "{context}: {}",
                stderr(&output)
            );
            assert!(!output.stdout.is_empty(), "{context}");
        }
        let text = stdout(&output);
        // The page's own scripts are ours.
        let text = match command[0] {
            "convert" => text.rsplit("<script").next().expect("a part").to_owned(),
            _ => text,
        };
        assert_plain(&text, &context);
        assert_plain(&stderr(&output), &context);
    }
}

/// Names of files are chosen by others as well.
#[test]
fn no_error_prints_a_name_that_acts() {
    let room = Room::without_agent();
    let output = room.output(&["report", "\x1b]0;t\x07\u{202e}.allocsample"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output).lines().count(), 1);
    assert_plain(&stderr(&output), "a name that is not there");
}

fn exported(profile: &Profile, format: Format) -> String {
    let mut out = Vec::new();
    allocsample_export::write(profile, format, &Options::default(), &mut out).expect("an export");
    String::from_utf8(out).expect("text")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_format_is_plain_and_the_flame_graph_is_xml(
        name in prop_oneof![
            proptest::collection::vec(any::<char>(), 0..24).prop_map(String::from_iter),
            proptest::collection::vec(prop::sample::select(NASTY.chars().collect::<Vec<_>>()), 0..24)
                .prop_map(String::from_iter),
        ],
    ) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x.allocsample");
        fs::write(&path, hostile::named(&name)).expect("a file");
        let profile = Profile::open(&path).expect("a profile");
        prop_assert_eq!(profile.samples.len(), 4);
        let formats = [
            Format::Firefox,
            Format::Collapsed,
            Format::Svg,
            Format::Json,
            Format::Speedscope,
            Format::Csv,
        ];
        for format in formats {
            let text = exported(&profile, format);
            assert_plain(&text, &format!("{format:?}"));
            if format == Format::Collapsed {
                let is_line = |line: &str| line.rsplit_once(' ').is_some_and(|(_, number)| number.parse::<u64>().is_ok());
                prop_assert!(text.lines().all(is_line), "{:?}", text);
            }
            if format == Format::Svg {
                let mut reader = quick_xml::Reader::from_str(&text);
                reader.config_mut().check_end_names = true;
                loop {
                    match reader.read_event() {
                        Ok(Event::Eof) => break,
                        Ok(_) => {}
                        Err(error) => panic!("{name:?}: {error}"),
                    }
                }
            }
        }
    }
}
