//! Promise: a file of few bytes never takes much memory or time to read, whatever is in it.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use allocsample_profile::Profile;
use allocsample_record::{
    ChunkEncoder, ChunkKind, CodeGeneration, HeapId, Location, ModuleId, RecordKind, StackId,
    StackNode, SymbolFrame, SymbolTable,
};
use support::hostile::{self, Hostile, Random, node, sample};
use support::{Program, command};

/// What a reader may take: so much, and so much for each byte of the file.
const BASE_BYTES: usize = 64 << 20;
const TIMES: usize = 20;

/// The system's allocator, and how much it has given out.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST_HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the arguments that it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST_HELD.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and the block is the system's.
        unsafe { System.dealloc(block, layout) }
    }

    // Large blocks are moved by the kernel: there is no moment at which both are there.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes - layout.size();
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        MOST_HELD.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`, and the block is the system's.
        unsafe { System.realloc(block, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests of this file take turns: they share the count.
static TURN: Mutex<()> = Mutex::new(());

/// Bytes that were in use at most while `work` ran, beyond those before.
fn most_held<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.load(Ordering::Relaxed);
    MOST_HELD.store(before, Ordering::Relaxed);
    let result = work();
    (MOST_HELD.load(Ordering::Relaxed) - before, result)
}

/// What became of the command, and its largest resident set in bytes.
struct Ran {
    status: ExitStatus,
    said: String,
    resident_bytes: usize,
}

/// Runs the command with a limit of a minute of a processor's time, whatever else the machine does.
fn run(directory: &Path, arguments: &[&str]) -> Ran {
    static MEASURED: LazyLock<Program> = LazyLock::new(|| Program::compiled("measured.c"));
    let resident = directory.join("resident");
    let output = Command::new(MEASURED.path())
        .arg(&resident)
        .arg("60")
        .arg(command())
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .expect("a program");
    let resident = fs::read_to_string(&resident).expect("a number");
    Ran {
        status: output.status,
        said: String::from_utf8(output.stderr).expect("text"),
        resident_bytes: resident.trim().parse::<usize>().expect("KiB") * 1024,
    }
}

/// Small files, each of which asks for much in its own way, by their names.
fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let long = vec![b'x'; 1 << 20];
    let chain = |encoder: &mut ChunkEncoder, count: u64| {
        (0..count).fold(StackId::EMPTY, |stack, offset| {
            node(encoder, stack, 4096 + offset % 2)
        })
    };
    let places = |encoder: &mut ChunkEncoder, count: u64| {
        for number in 0..count {
            let stack = node(encoder, StackId::EMPTY, 4096 + number);
            sample(encoder, number + 1, stack);
        }
    };
    vec![
        (
            "a long name for every place",
            Hostile::default()
                .events(|encoder| places(encoder, 4000))
                .symbols(&[&long], 8000, 1)
                .bytes(),
        ),
        (
            "a long name for every inlined frame",
            Hostile::default()
                .events(|encoder| places(encoder, 2))
                .symbols(&[&long], 500, 1000)
                .bytes(),
        ),
        (
            "many frames inlined into each frame of many deep stacks",
            Hostile::default()
                .events(|encoder| {
                    let mut stack = StackId::EMPTY;
                    for number in 1..4000 {
                        stack = node(encoder, stack, 1);
                        sample(encoder, number, stack);
                    }
                })
                .symbols(&[b"f"], 2, 1000)
                .bytes(),
        ),
        (
            "a stack of a million frames for many samples",
            Hostile::default()
                .events(|encoder| {
                    let stack = chain(encoder, 1_000_000);
                    (1..50_000).for_each(|number| sample(encoder, number, stack));
                })
                .bytes(),
        ),
        (
            "two million nodes in a few kilobytes",
            Hostile::default()
                .events(|encoder| {
                    chain(encoder, 2_000_000);
                })
                .bytes(),
        ),
        (
            "a million samples that are alike",
            Hostile::default()
                .events(|encoder| (1..500_000).for_each(|it| sample(encoder, it, StackId::EMPTY)))
                .events(|encoder| (1..500_000).for_each(|it| sample(encoder, it, StackId::EMPTY)))
                .bytes(),
        ),
        (
            "a million places",
            Hostile::default()
                .events(|encoder| places(encoder, 300_000))
                .bytes(),
        ),
        (
            "one record of sixteen million words",
            Hostile::default()
                .packed(ChunkKind::Events, &{
                    let mut raw = vec![RecordKind::Note as u8];
                    hostile::varint(&mut raw, 16 << 20);
                    raw.resize(raw.len() + (16 << 20), 1);
                    raw
                })
                .bytes(),
        ),
        ("records of a byte each", {
            let mut records = vec![RecordKind::Sample as u8, 12, 0xff];
            records.extend([2; 8]);
            records
                .extend([RecordKind::Sample as u8 | 128, 2, 2, 2, 2, 2, 2, 2, 2].repeat(200_000));
            Hostile::default()
                .events(|_| ())
                .records(&records, &vec![2; 4 << 20])
                .bytes()
        }),
        ("code that overlaps, for many samples", {
            let code = |number: u64| CodeGeneration {
                start: number,
                end: u64::MAX,
                since_ns: number,
                until_ns: u64::MAX,
                frame: SymbolFrame::default(),
            };
            let table = SymbolTable {
                code: (0..100_000).map(code).collect(),
                ..SymbolTable::default()
            };
            Hostile::default()
                .events(|encoder| {
                    let (parent, module) = (StackId::EMPTY, ModuleId::NONE);
                    let location = Location {
                        module,
                        offset: 1 << 50,
                    };
                    let stack = encoder.node(StackNode { parent, location });
                    (1..100_000).for_each(|number| sample(encoder, number, stack));
                })
                .packed(ChunkKind::Symbols, &table.encode())
                .bytes()
        }),
        (
            "as many intervals, threads and heaps as there can be",
            Hostile::default()
                .events(|encoder| {
                    for number in 1..u16::MAX {
                        hostile::interval(encoder, number, 4096 + u64::from(number));
                        hostile::sample_in(encoder, number, HeapId::MALLOC);
                        hostile::sample_in(encoder, number, HeapId(number));
                    }
                })
                .bytes(),
        ),
        (
            "modules that have no end, or nobody at theirs",
            Hostile::default()
                .events(|encoder| {
                    let paths: [&[u8]; 4] = [b"/dev/zero", b"pipe", b"sparse", b"/proc/kcore"];
                    for (number, path) in (2..).zip(paths) {
                        hostile::module(encoder, number << 40, path);
                        let (parent, module) = (StackId::EMPTY, ModuleId(number as u32));
                        let location = Location {
                            module,
                            offset: 4096,
                        };
                        let stack = encoder.node(StackNode { parent, location });
                        sample(encoder, number, stack);
                    }
                })
                .bytes(),
        ),
    ]
}

/// Ends well, or in one line; never by a signal.
#[track_caller]
fn assert_bounded(ran: &Ran, file_bytes: usize, context: &str) {
    let Ran {
        status,
        said,
        resident_bytes,
    } = ran;
    assert!(
        matches!(status.code(), Some(0 | 1)),
        "{context}: {status}: {said}"
    );
    if status.code() == Some(1) {
        // What was left out of a file may have been said before.
        let (remarks, error) = match said.trim_end().rsplit_once('\n') {
            Some((remarks, error)) => (remarks, error),
            None => ("", said.trim_end()),
        };
        assert!(error.starts_with("error: "), "{context}: {said}");
        let is_remark = |line: &str| line.starts_with("allocsample: ");
        assert!(remarks.lines().all(is_remark), "{context}: {said}");
    }
    /// What the command takes for a profile that holds next to nothing.
    static EMPTY_BYTES: LazyLock<usize> = LazyLock::new(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let empty = Hostile::default().events(|_| ()).bytes();
        fs::write(directory.path().join("x.allocsample"), empty).expect("a file");
        run(directory.path(), &["report", "x.allocsample"]).resident_bytes
    });
    let most = *EMPTY_BYTES + BASE_BYTES + TIMES * file_bytes;
    assert!(
        *resident_bytes <= most,
        "{context}: {resident_bytes} of {most} bytes for a file of {file_bytes}: {said}"
    );
}

#[test]
fn reports_of_hostile_files_take_little_memory_and_time() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let sparse = fs::File::create(path("sparse")).expect("a file");
    sparse.set_len(1 << 42).expect("a length");
    let made = Command::new("mkfifo").arg(path("pipe")).status();
    assert!(made.expect("mkfifo").success());
    for (name, content) in cases() {
        fs::write(path("x.allocsample"), &content).expect("a file");
        for arguments in [
            &["report", "x.allocsample"][..],
            &["report", "x.allocsample", "--by", "site"],
        ] {
            let ran = run(directory.path(), arguments);
            eprintln!(
                "{name}: {} bytes: {}, {} MiB: {}",
                content.len(),
                ran.status,
                ran.resident_bytes >> 20,
                ran.said.trim()
            );
            assert_bounded(&ran, content.len(), name);
        }
    }
}

/// What is good is used, and the command says where it ends.
#[test]
fn what_stands_before_a_chunk_that_is_too_large_is_used() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let content = Hostile::default()
        .events(|encoder| (1..100).for_each(|it| sample(encoder, it, StackId::EMPTY)))
        .packed(ChunkKind::Events, &vec![1; 100 << 20])
        .bytes();
    fs::write(directory.path().join("x.allocsample"), &content).expect("a file");
    let ran = run(directory.path(), &["report", "x.allocsample"]);
    assert_bounded(&ran, content.len(), "a bomb");
    assert_eq!(ran.status.code(), Some(0), "{}", ran.said);
    let expected = "x.allocsample: chunk 2 needs more memory than a profile of this size may take";
    assert!(ran.said.contains(expected), "{}", ran.said);
    // Not a bomb for those who know where it comes from.
    let arguments = ["report", "x.allocsample", "--no-limits"];
    let ran = run(directory.path(), &arguments);
    assert!(ran.said.contains("chunk 2 is malformed"), "{}", ran.said);
}

#[test]
fn a_ring_without_end_is_not_read_to_its_end() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let content = Hostile::default().events(|_| ()).bytes();
    fs::write(directory.path().join("x.allocsample"), &content).expect("a file");
    let ring = fs::File::create(directory.path().join("x.allocsample.ring")).expect("a file");
    ring.set_len(1 << 42).expect("a length");
    let ran = run(directory.path(), &["report", "x.allocsample"]);
    assert_bounded(&ran, content.len(), "a sparse ring");
    assert_eq!(ran.status.code(), Some(0), "{}", ran.said);
}

/// Reads what a seed stands for, and fails if that takes too much.
fn check(seed: u64, bytes: &[u8], path: &Path) {
    fs::write(path, bytes).expect("a file");
    let (held, profile) = most_held(|| Profile::open(path).map(|profile| profile.samples.len()));
    let most = BASE_BYTES + TIMES * bytes.len();
    assert!(
        held <= most,
        "seed {seed}: {held} of {most} bytes for a file of {}: {profile:?}",
        bytes.len()
    );
}

fn check_seed(seed: u64, path: &Path) {
    let bytes = hostile::anything(seed);
    check(seed, &bytes, path);
    let mut random = Random::new(!seed);
    check(seed, &hostile::mutated(&bytes, &mut random), path);
}

#[test]
fn files_with_right_checksums_and_nothing_else_take_little_memory() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.allocsample");
    for seed in 0..150 {
        check_seed(seed, &path);
    }
}

#[test]
fn files_with_records_of_every_kind_take_little_memory() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.allocsample");
    for seed in hostile::ALL_KINDS..hostile::ALL_KINDS + 150 {
        check_seed(seed, &path);
    }
    for seed in hostile::ALL_KINDS..hostile::ALL_KINDS + 20 {
        check_command(seed, "memory x.allocsample --format json", directory.path());
    }
}

/// Found by the fuzz, and mended since.
#[test]
fn files_that_once_took_too_much_no_longer_do() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    for seed in [5_007_636, 5_012_841, 5_024_825, 5_030_352] {
        check_seed(seed, &directory.path().join("x.allocsample"));
    }
}

/// Likewise.
#[test]
fn files_on_which_commands_once_failed_no_longer_make_them() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    for (seed, command) in [
        (7_002_632, "convert x.allocsample --to firefox -o -"),
        (7_002_984, "convert x.allocsample --to firefox -o -"),
        (7_005_204, "report x.allocsample --callgraph"),
        (7_009_976, "report x.allocsample --summary"),
        (7_018_608, "report x.allocsample --format json"),
        (7_022_344, "convert x.allocsample --to firefox -o -"),
        (7_026_064, "convert x.allocsample --to csv -o -"),
        (
            7_010_760,
            "query x.allocsample --format csv SELECT*FROM(samples)",
        ),
    ] {
        check_command(seed, command, directory.path());
    }
}

/// What the long fuzz runs on the file that a seed stands for; `y.allocsample` is that of another seed.
const COMMANDS: &[&str] = &[
    "report x.allocsample",
    "report x.allocsample --by function --sort growth",
    "report x.allocsample --by site --sort peak",
    "report x.allocsample --by line --format csv",
    "report x.allocsample --by module --format json",
    "report x.allocsample --by thread",
    "report x.allocsample --by type --sort live",
    "report x.allocsample --by heap",
    "report x.allocsample --by size",
    "report x.allocsample --by lifetime --top 100000",
    "report x.allocsample --tree",
    "report x.allocsample --tree --format json",
    "report x.allocsample --tree --format csv",
    "report x.allocsample --callgraph",
    "report x.allocsample --callgraph --format csv",
    "report x.allocsample --lifetimes --format json",
    "report x.allocsample --redundancy",
    "report x.allocsample --at-peak --by site --format csv",
    "report x.allocsample --summary",
    "report x.allocsample --filter x --since 1us",
    "report x.allocsample --format json",
    "memory x.allocsample",
    "memory x.allocsample --format json",
    "memory x.allocsample --format csv",
    "leaks x.allocsample --all --top 1000",
    "leaks x.allocsample --format json",
    "leaks x.allocsample --format csv",
    "leaks x.allocsample y.allocsample",
    "diff x.allocsample y.allocsample --all",
    "diff x.allocsample y.allocsample --format json --by site",
    "diff y.allocsample x.allocsample --format csv --by line --measure live",
    "diff x.allocsample y.allocsample --to html -o -",
    "convert x.allocsample --to pprof -o -",
    "convert x.allocsample --to firefox -o -",
    "convert x.allocsample --to speedscope -o -",
    "convert x.allocsample --to collapsed -o -",
    "convert x.allocsample --to svg -o -",
    "convert x.allocsample --to html -o -",
    "convert x.allocsample --to json -o -",
    "convert x.allocsample --to csv -o -",
    "convert x.allocsample --to parquet -o parquet",
    "query x.allocsample --format csv SELECT*FROM(samples)",
    "query x.allocsample SELECT(COUNT(*))FROM(frames)",
    "query x.allocsample SELECT(COUNT(*))FROM(calls)JOIN(functions)USING(function_id)",
    "query x.allocsample SELECT(COUNT(*))FROM(frees)JOIN(stacks)USING(stack_id)",
    "symbolize x.allocsample",
    "join x.allocsample -o joined",
];

/// Runs a command on the file that a seed stands for.
fn check_command(seed: u64, command: &str, directory: &Path) {
    let files = [("x", seed), ("y", seed ^ 1)].map(|(name, seed)| {
        let bytes = hostile::anything(seed);
        let path = directory.join(format!("{name}.allocsample"));
        fs::write(path, &bytes).expect("a file");
        bytes.len()
    });
    let _ = fs::remove_file(directory.join("joined"));
    let arguments: Vec<&str> = command.split(' ').collect();
    // For each of the two what one may take.
    let file_bytes = match command.contains("y.allocsample") {
        true => files.iter().sum::<usize>() + BASE_BYTES / TIMES,
        false => files[0],
    };
    let ran = run(directory, &arguments);
    assert_bounded(&ran, file_bytes, &format!("seed {seed}: {command}"));
    let left: Vec<_> = fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().starts_with(".allocsample-"))
        .collect();
    assert!(left.is_empty(), "seed {seed}: {command}: {left:?}");
}

/// For as long as HOSTILE_SECONDS says; `scripts/fuzz` runs it.
#[test]
#[ignore = "takes as long as it is told to"]
fn fuzz_for_a_while() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seconds = number("HOSTILE_SECONDS").unwrap_or(60);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("x.allocsample");
    let end = Instant::now() + Duration::from_secs(seconds);
    let first = number("HOSTILE_SEED").unwrap_or(hostile::ALL_KINDS + 1_000_000);
    let (mut seed, mut slowest) = (first, (Duration::ZERO, 0, 0));
    while Instant::now() < end {
        let begun = Instant::now();
        check_seed(seed, &path);
        let bytes = fs::metadata(&path).map_or(0, |file| file.len());
        slowest = slowest.max((begun.elapsed(), seed, bytes));
        // The whole command now and then, in one of its ways.
        const EVERY: u64 = 4;
        if seed.is_multiple_of(EVERY) {
            let command = COMMANDS[(seed / EVERY) as usize % COMMANDS.len()];
            check_command(seed, command, directory.path());
        }
        seed += 1;
    }
    eprintln!("{} seeds from {first}; slowest {slowest:?}", seed - first);
}
