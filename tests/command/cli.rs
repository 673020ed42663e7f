//! Promise: the command says what it did, in words that help, and one line about each error.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::support::room::{assert_error, stderr, stdout};
use crate::support::{Program, Room, agent_library};
use flate2::read::GzDecoder;

#[test]
fn what_makes_no_sense_is_one_line_and_status_2() {
    let room = Room::without_agent();
    for (arguments, what) in [
        (&[][..], "no command given; see `allocsample --help`"),
        (
            &["frobnicate"],
            "unrecognized subcommand 'frobnicate'; tip: `allocsample run -- frobnicate` profiles a program; see `allocsample --help`",
        ),
        (&["runn"], "a similar subcommand exists: 'run'"),
        (&["run"], "see `allocsample run --help`"),
        (
            &["join", "a", "b", "-o", "-"],
            "-: a profile cannot be written to stdout; name a file",
        ),
        (
            &["run", "--interval", "0", "--", "true"],
            "use 1 to record every allocation, or off",
        ),
        (
            &["run", "--interval", "banana", "--", "true"],
            "invalid value 'banana' for '--interval",
        ),
        (
            &["run", "--sampling", "often", "--", "true"],
            "possible values: poisson, periodic",
        ),
        (
            &["run", "--seed", "x", "--", "true"],
            "invalid value 'x' for '--seed",
        ),
        (
            &["run", "--max-depth", "0", "--", "true"],
            "invalid value '0' for '--max-depth",
        ),
        (
            &["run", "--rotate-every", "0s", "--", "true"],
            "expected a time from 1s to 365d",
        ),
        (
            &["run", "--window", "10", "--", "true"],
            "expected a time from 1s to 365d",
        ),
        (
            &["run", "--rotate-size", "1K", "--", "true"],
            "expected bytes, at least 64K",
        ),
        (
            &["run", "--window", "1h", "--max-size", "4M", "--", "true"],
            "--max-size 4M: expected at least 8M",
        ),
        (
            &["run", "-o", "no/such/x", "--", "true"],
            "does not exist; create it first",
        ),
        (&["run", "-o", ".", "--", "true"], "is a directory"),
        (
            &["run", "-o", "/dev/null", "--", "true"],
            "is not a regular file",
        ),
        (&["run", "-o", "", "--", "true"], "--output"),
        (
            &["run", "--convert", "gif", "--", "true"],
            "unknown format; expected firefox,",
        ),
        (&["report"], "see `allocsample report --help`"),
        (
            &["report", "x", "--by", "colour"],
            "possible values: function, site",
        ),
        (
            &["report", "x", "--filter", "a(b"],
            "--filter 'a(b': not a regular expression: unclosed group",
        ),
        (
            &["report", "x", "--format", "json", "--top", "3"],
            "omit --top, or select a table",
        ),
        (
            &["report", "x", "--tree", "--top", "3"],
            "cannot be used with",
        ),
        (&["convert", "x"], "--to <FORMATS>"),
        (
            &["convert", "x", "--to", "gif"],
            "unknown format; expected firefox,",
        ),
        (
            &["convert", "x", "--to", "svg,json", "-o", "y"],
            "names one file for 2 formats",
        ),
        (
            &["convert", "x", "--to", "json", "--metric", "live"],
            "--metric applies to collapsed and svg",
        ),
    ] {
        assert_error(&room.output(arguments), 2, what);
    }
}

#[test]
fn every_command_has_help_with_an_example() {
    let room = Room::without_agent();
    let help = |command: &[&str]| {
        let output = room.output(&[command, &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0));
        stdout(&output)
    };
    let main = help(&[]);
    assert!(main.contains("Example"), "{main}");
    let commands = main.split("Commands:\n").nth(1).expect("the commands");
    let lines = commands.lines().take_while(|line| !line.is_empty());
    // A description may continue in further lines, which are indented more.
    let names: Vec<_> = lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() >= 15, "{names:?}");
    for name in names {
        assert!(help(&[name]).contains("Example"), "{name}");
    }
}

#[test]
fn a_file_that_is_no_profile_is_one_line_and_status_1() {
    let room = Room::without_agent();
    let mut newer = [0; 64];
    newer[..10].copy_from_slice(b"ALLOCSMP\x63\0");
    for (name, content, what) in [
        ("missing", None, "No such file or directory"),
        ("empty", Some(&b""[..]), "the file is empty"),
        (
            "elf",
            Some(b"\x7fELF\x02\x01\x01"),
            "not an allocsample profile (it is an ELF file",
        ),
        (
            "cut",
            Some(b"ALLOCSMP\x01\0"),
            "the file ends within its header",
        ),
        (
            "newer",
            Some(&newer[..]),
            "written in format 99.0 by a newer allocsample",
        ),
    ] {
        if let Some(content) = content {
            fs::write(room.path(name), content).unwrap();
        }
        for command in [
            &["report", name][..],
            &["report", name, "--format", "json"],
            &["symbolize", name],
            &["convert", name, "--to", "json,svg"],
            &["convert", name, "--to", "html,parquet,csv"],
            &["query", name, "SELECT 1"],
            &["view", name, "--no-open"],
            &["top", name],
        ] {
            let output = room.output(command);
            let stderr = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(
                stderr.starts_with(&format!("error: {name}: {what}")),
                "{stderr}"
            );
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
            assert!(output.stdout.is_empty());
        }
    }
    assert!(
        !room
            .names()
            .iter()
            .any(|name| name.ends_with("json") || name.ends_with("svg"))
    );
}

#[test]
fn reports_name_what_the_program_did() {
    let room = Room::new();
    room.record("out.allocsample", &[], &[]);
    let report = |options: &[&str]| {
        stdout(&room.output(&[&["report", "out.allocsample"], options].concat()))
    };
    assert_eq!(
        report(&["--summary"])
            .lines()
            .next()
            .unwrap()
            .split(' ')
            .next(),
        Some("./leaky")
    );
    assert!(report(&["--by", "site", "--sort", "live"]).contains("keep"));
    assert!(report(&["--tree"]).contains("main"));
    assert!(!report(&["--filter", "keep"]).contains("churn"));
    let json: serde_json::Value = serde_json::from_str(&report(&["--format", "json"])).unwrap();
    assert_eq!(json["schema"], "allocsample-report/1");
    let allocated = json["totals"]["allocated_bytes"].as_f64().unwrap();
    // 8,000,000 bytes and whatever the loader takes; the standard error is about 50,000.
    assert!((allocated - 8e6).abs() < 4e5, "{allocated}");
}

#[test]
fn conversions_are_written_beside_the_profile_or_where_they_are_wanted() {
    let room = Room::new();
    room.record("out.allocsample", &[], &[]);
    let formats = "firefox,pprof,collapsed,svg,json,speedscope";
    let convert = ["convert", "out.allocsample", "--metric", "allocated"];
    let output = room.output(&[&convert[..], &["--to", formats]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for name in [
        "firefox.json",
        "pb.gz",
        "collapsed",
        "svg",
        "json",
        "speedscope.json",
    ] {
        assert!(
            fs::metadata(room.path(&format!("out.{name}")))
                .unwrap()
                .len()
                > 100,
            "{name}"
        );
        assert!(stderr(&output).contains(&format!("allocsample: wrote out.{name}\n")));
    }
    let to_stdout = room.output(&[&convert[..], &["--to", "collapsed", "-o", "-"]].concat());
    assert_eq!(
        to_stdout.stdout,
        fs::read(room.path("out.collapsed")).unwrap()
    );
    assert_eq!(stderr(&to_stdout), "");
    let stacks = stdout(&to_stdout);
    assert!(
        stacks.lines().any(|line| line.contains("main;churn;make ")),
        "{stacks}"
    );
    let live = room.output(&[
        "convert",
        "out.allocsample",
        "--to",
        "collapsed",
        "--metric",
        "live",
        "-o",
        "-",
    ]);
    let live = stdout(&live);
    assert!(
        live.contains(";main;keep;make ") && !live.contains("churn"),
        "{live}"
    );
    let itself = room.output(&[
        "convert",
        "out.allocsample",
        "--to",
        "json",
        "-o",
        "./out.allocsample",
    ]);
    assert_error(&itself, 2, "this is the profile itself");
}

#[test]
fn a_name_that_ends_in_gz_is_packed() {
    let room = Room::new();
    room.record("out.allocsample", &[], &["tidy"]);
    for format in ["firefox", "json", "csv", "html"] {
        let convert = ["convert", "out.allocsample", "--to", format, "-o"];
        for name in ["plain", "packed.gz"] {
            let output = room.output(&[&convert[..], &[name]].concat());
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        }
        let (plain, packed) = (room.path("plain"), room.path("packed.gz"));
        let mut unpacked = Vec::new();
        GzDecoder::new(fs::File::open(&packed).unwrap())
            .read_to_end(&mut unpacked)
            .unwrap();
        assert!(unpacked == fs::read(&plain).unwrap(), "{format}");
        let length = |path| fs::metadata(path).unwrap().len();
        assert!(2 * length(&packed) < length(&plain), "{format}");
    }
    // Which is gzip anyhow, and not twice.
    let convert = ["convert", "out.allocsample", "--to", "pprof", "-o"];
    for name in ["one.gz", "other"] {
        room.output(&[&convert[..], &[name]].concat());
    }
    let read = |name| fs::read(room.path(name)).unwrap();
    assert!(!read("one.gz").is_empty() && read("one.gz") == read("other"));
}

#[test]
fn a_failed_conversion_leaves_what_was_there() {
    let room = Room::new();
    room.record("out.allocsample", &[], &["tidy"]);
    fs::write(room.path("out.svg"), "old").unwrap();
    let arguments = [
        "convert",
        "out.allocsample",
        "--to",
        "svg",
        "--metric",
        "live",
    ];
    let before = room.names();
    let stacks = room.output(&[
        "convert",
        "out.allocsample",
        "--to",
        "collapsed",
        "--metric",
        "live",
        "-o",
        "-",
    ]);
    let output = room.output(&arguments);
    assert_eq!(stdout(&stacks), "");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output)
            .starts_with("error: out.svg: nothing to draw: the profile has no live bytes"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read_to_string(room.path("out.svg")).unwrap(), "old");
    assert_eq!(room.names(), before);
    let output = room.output(&[
        "convert",
        "out.allocsample",
        "--to",
        "json",
        "-o",
        "no/such/file",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).starts_with("error: no/such/file: cannot write into no/such"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let room = Room::new();
    room.record("out.allocsample", &[], &[]);
    for arguments in [
        &["report", "out.allocsample"][..],
        &["report", "out.allocsample", "--format", "json"],
        &["convert", "out.allocsample", "--to", "json", "-o", "-"],
        &["convert", "out.allocsample", "--to", "pprof", "-o", "-"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = room.command(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[test]
fn a_run_without_a_profile_says_why() {
    let room = Room::without_agent();
    for (options, why) in [
        (
            &["--interval", "off"][..],
            "no profile: the interval is off",
        ),
        (
            &["--start", "off"],
            "no profile: sampling was off from the start",
        ),
        (
            &[],
            "no profile: the program ended (status 0) before its first sample of malloc (a smaller --interval samples earlier)",
        ),
    ] {
        let output = room.output(&[&["run"], options, &["--", "true"]].concat());
        let stderr = stderr(&output);
        assert!(
            stderr.starts_with(&format!("allocsample: {why}")),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn a_run_ends_with_where_the_profile_is_and_what_is_in_it() {
    let room = Room::new();
    let output = room.record("out.allocsample", &[], &[]);
    assert_eq!(output.status.code(), Some(7));
    assert!(output.stdout.is_empty());
    let stderr = stderr(&output);
    let lines: Vec<&str> = stderr.lines().collect();
    let place = |what: &str| {
        let line = lines.iter().position(|line| line.starts_with(what));
        line.unwrap_or_else(|| panic!("no {what} in {stderr}"))
    };
    let first = place("allocsample: the profile is out.allocsample");
    assert_eq!(place("allocsample:   ./leaky  pid "), first + 1);
    assert_eq!(place("allocsample:   allocated "), first + 2);
    assert_eq!(place("allocsample:   live "), first + 3);
    let last = place("allocsample: next: allocsample report out.allocsample");
    assert_eq!(last + 1, lines.len());
    assert!(lines.iter().all(|line| line.starts_with("allocsample: ")));
    assert!(!room.path("out.allocsample.ring").exists());
}

#[test]
fn a_quiet_run_says_nothing() {
    let room = Room::new();
    let output = room.record("out.allocsample", &["--quiet", "--convert", "svg"], &[]);
    assert_eq!(stderr(&output), "");
    assert!(room.path("out.allocsample").exists() && room.path("out.svg").exists());
}

#[test]
fn the_profile_of_a_killed_program_is_completed() {
    let room = Room::new();
    for (how, signal) in [("kill", 9), ("abort", 6)] {
        let name = format!("{how}.allocsample");
        let output = room.record(&name, &[], &[how]);
        assert_eq!(output.status.signal(), Some(signal));
        assert!(
            stderr(&output).contains("next: allocsample report"),
            "{}",
            stderr(&output)
        );
        assert!(!room.path(&format!("{name}.ring")).exists());
        let report = room.output(&["report", &name, "--top", "3"]);
        assert!(
            stdout(&report).contains("make [leaky]"),
            "{}",
            stdout(&report)
        );
    }
}

#[test]
fn profiles_of_children_are_found_and_named() {
    let room = Room::new();
    room.add(&Program::compiled("leaky.c"), "leaky");
    let arguments = [
        "run",
        "--interval",
        // Every allocation: a shell allocates so little that it may end without a sample.
        "1",
        "--",
        "sh",
        "-c",
        "./leaky; ./leaky; exit 4",
    ];
    let output = room.command(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let profiles: Vec<String> = room.names();
    let of_leaky = profiles
        .iter()
        .filter(|name| name.starts_with("allocsample.leaky.") && name.ends_with(".allocsample"));
    let stderr = stderr(&output);
    assert_eq!(of_leaky.clone().count(), 2, "{profiles:?}");
    for name in of_leaky {
        assert!(
            stderr.contains(&format!("allocsample: {name} (pid "))
                || stderr.contains(&format!("its profile is {name}\n")),
            "{stderr}"
        );
    }
    // The shell allocated next to nothing.
    assert!(
        stderr.contains("allocsample: 1 other process allocated "),
        "{stderr}"
    );
}

#[test]
fn names_are_added_later_if_the_run_left_them_out() {
    let room = Room::new();
    room.record("out.allocsample", &["--no-symbolize"], &[]);
    let before = fs::read(room.path("out.allocsample")).unwrap();
    assert!(!before.windows(5).any(|text| text == b"churn"));
    let output = room.output(&["symbolize", "out.allocsample"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("code addresses have names"));
    // Without the program, names can only come from the profile.
    fs::remove_file(room.path("leaky")).unwrap();
    // What is freed at once is rarely held at the peak.
    let report = ["report", "out.allocsample", "--sort", "allocated"];
    let report = stdout(&room.output(&report));
    assert!(report.contains("churn [leaky]"), "{report}");
}

#[test]
fn a_ring_may_stand_for_its_profile_and_is_not_damaged() {
    let room = Room::new();
    room.add(&Program::compiled("leaky.c"), "leaky");
    let status = Command::new(room.path("leaky"))
        .arg("kill")
        .env("LD_PRELOAD", agent_library())
        .env("ALLOCSAMPLE_OUTPUT", room.path("killed.allocsample"))
        .env("ALLOCSAMPLE_INTERVAL", "4K")
        .status()
        .expect("leaky runs");
    assert_eq!(status.signal(), Some(9));
    let ring = "killed.allocsample.ring";
    let before = fs::read(room.path(ring)).expect("a ring");
    let report = room.output(&["report", ring]);
    assert!(stdout(&report).contains("make"), "{}", stdout(&report));
    assert_eq!(fs::read(room.path(ring)).expect("a ring"), before);
    let symbolized = room.output(&["symbolize", ring]);
    assert!(symbolized.status.success(), "{}", stderr(&symbolized));
    assert!(!room.path(ring).exists(), "its records are in the profile");
    let report = room.output(&["report", "killed.allocsample", "--filter", "make"]);
    assert!(
        stdout(&report).contains("make [leaky]"),
        "{}",
        stdout(&report)
    );
}

#[test]
fn the_tree_shows_what_passes_the_filter() {
    let room = Room::new();
    room.record("out.allocsample", &[], &[]);
    let all = stdout(&room.output(&["report", "out.allocsample", "--tree"]));
    let none = stdout(&room.output(&[
        "report",
        "out.allocsample",
        "--tree",
        "--filter",
        "^no_such_function$",
    ]));
    let some = stdout(&room.output(&["report", "out.allocsample", "--tree", "--filter", "^make$"]));
    assert!(all.contains("make") && some.contains("make"), "{all}{some}");
    assert!(!none.contains("make"), "{none}");
}
