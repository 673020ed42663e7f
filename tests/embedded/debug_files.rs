//! Promise: with `--embedded`, an allocator in a stripped file is found by the symbols in its debug file, and by no other file.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::talking::Talking;
use crate::support::{Program, Room, bridge, embedded};
use object::read::elf::{FileHeader, SectionHeader};
use object::{LittleEndian, elf};

const EVERY: &[&str] = &["--embedded", "--interval", "1"];

#[track_caller]
fn tool(name: &str, directory: &Path, arguments: &[&str]) {
    let mut command = Command::new(name);
    let status = command.args(arguments).current_dir(directory).status();
    assert!(status.expect(name).success(), "{name} {arguments:?}");
}

/// Puts the program into the room as `own`, and its symbols into the file `own.debug`, which it names.
fn split(room: &Room, program: &Program) {
    room.add(program, "own");
    let directory = room.directory();
    tool(
        "objcopy",
        directory,
        &["--only-keep-debug", "own", "own.debug"],
    );
    tool("strip", directory, &["own"]);
    tool(
        "objcopy",
        directory,
        &["--add-gnu-debuglink=own.debug", "own"],
    );
}

fn with_mimalloc(more: &[&str]) -> Option<Program> {
    let flags = embedded::mimalloc_flags()?;
    let flags: Vec<&str> = more
        .iter()
        .copied()
        .chain(flags.iter().map(String::as_str))
        .collect();
    Some(Program::compiled_with("embedded.c", &flags))
}

/// Runs `own`; whether its blocks were sampled.
fn is_sampled(room: Room) -> bool {
    let mut program = Talking::start(room, EVERY, &["./own"]);
    for line in embedded::BLOCKS {
        program.ask(line);
    }
    let (_room, profile) = program.end();
    let is_sampled = bridge::has_heap(&profile, "mimalloc in own");
    if is_sampled {
        let heap = bridge::heap(&profile, "mimalloc in own");
        let allocated = crate::support::profile::figure(heap, "allocated_bytes");
        assert_eq!(allocated, 13_721_600.0, "{heap}");
    }
    is_sampled
}

#[test]
fn the_debug_file_beside_a_stripped_program_has_its_symbols() {
    for directory in ["", ".debug/"] {
        let Some(program) = with_mimalloc(&[]) else {
            return;
        };
        let room = Room::new();
        split(&room, &program);
        if !directory.is_empty() {
            std::fs::create_dir(room.path(directory)).expect("a directory");
            let place = room.path(&format!("{directory}own.debug"));
            std::fs::rename(room.path("own.debug"), place).expect("a file");
        }
        assert!(is_sampled(room), "{directory:?}");
    }
}

/// A library, whose functions in its debug file are local.
#[test]
fn the_debug_file_of_a_library_that_is_opened_later_has_its_symbols() {
    let Some(flags) = embedded::mimalloc_flags() else {
        return;
    };
    let room = Room::new();
    split(&room, &embedded::library("libstripped.so", &flags));
    room.add(&Program::compiled("embedded.c"), "opens");
    let tls = [("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384")];
    let library = room.path("own");
    let mut program = Talking::start_with(room, &tls, EVERY, &["./opens"]);
    program.ask(&format!("open {}", library.display()));
    program.ask("allocate second 100 2000");
    let (_room, profile) = program.end();
    let heap = bridge::heap(&profile, "mimalloc in own");
    assert!(
        crate::support::profile::figure(heap, "live_bytes") >= 200_000.0,
        "{heap}"
    );
}

#[test]
fn a_debug_file_that_is_not_the_programs_is_not_used() {
    let (Some(program), Some(another)) = (with_mimalloc(&[]), with_mimalloc(&["-DANOTHER", "-O0"]))
    else {
        return;
    };
    // Without one, with that of another build, and with that of another build under the same id.
    let same = ["-Wl,--build-id=0x0123456789abcdef"];
    let same = [
        &["-DSAME", "-O0", same[0]][..],
        &["-DSAME", "-O1", same[0]][..],
    ];
    let [one, other] = same.map(|flags| with_mimalloc(flags).expect("as before"));
    for (program, of) in [
        (&program, None),
        (&program, Some(&another)),
        (&one, Some(&other)),
    ] {
        let (room, elsewhere) = (Room::new(), Room::without_agent());
        split(&room, program);
        match of {
            Some(of) => {
                split(&elsewhere, of);
                std::fs::copy(elsewhere.path("own.debug"), room.path("own.debug")).map(|_| ())
            }
            None => std::fs::remove_file(room.path("own.debug")),
        }
        .expect("files");
        assert!(!is_sampled(room));
    }
}

/// In a mount namespace, so that the machine's own debug files stay as they are.
#[test]
fn the_debug_file_below_usr_lib_debug_is_found_by_its_build_id() {
    let Some(program) = with_mimalloc(&[]) else {
        return;
    };
    let is_possible = Path::new("/usr/lib/debug").is_dir() && crate::support::is_root();
    if !is_possible || !crate::support::is_installed("unshare") {
        return crate::support::skip("no right to mount over /usr/lib/debug (root, util-linux)");
    }
    let room = Room::new();
    split(&room, &program);
    let id = build_id(&room.path("own.debug"));
    let (first, rest) = id.split_at(2);
    let script = format!(
        "mount -t tmpfs none /usr/lib/debug || exit 99\n\
         mkdir -p /usr/lib/debug/.build-id/{first}\n\
         mv own.debug /usr/lib/debug/.build-id/{first}/{rest}.debug\n\
         printf 'allocate second 100 2000\\nend 7\\n' | \
         {} run -q -o x.allocsample --embedded --interval 1 -- ./own",
        crate::support::command().display()
    );
    let command = room.command(&[]);
    let library = command
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)));
    let variables: Vec<_> = library.collect();
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &script])
        .current_dir(room.directory());
    for (name, value) in variables {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let output = command.output().expect("unshare");
    if output.status.code() == Some(99) {
        return crate::support::skip("no right to mount (a container)");
    }
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let profile = crate::support::profile::Profile::read(&room.path("x.allocsample"));
    assert_eq!(profile.site("second").live_bytes, 200_000.0);
}

// ---- files that hold anything ----

fn header(file: &[u8]) -> &elf::FileHeader64<LittleEndian> {
    elf::FileHeader64::parse(file).expect("an ELF file")
}

fn build_id(path: &Path) -> String {
    let file = std::fs::read(path).expect("a file");
    let place = note(&file);
    file[place..place + 20]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Where the build id is.
fn note(file: &[u8]) -> usize {
    let sections = header(file).sections(LittleEndian, file).expect("sections");
    let (_, section) = sections
        .section_by_name(LittleEndian, b".note.gnu.build-id")
        .expect("a note");
    usize::try_from(section.sh_offset(LittleEndian)).expect("small") + 16
}

/// Where the header of a section is.
fn section_header(file: &[u8], name: &[u8]) -> usize {
    let sections = header(file).sections(LittleEndian, file).expect("sections");
    let (index, _) = sections
        .section_by_name(LittleEndian, name)
        .expect("it is there");
    let start = usize::try_from(header(file).e_shoff.get(LittleEndian)).expect("small");
    start + index.0 * size_of::<elf::SectionHeader64<LittleEndian>>()
}

/// The agent's search in a program of its own, which sanitizers watch.
struct Looking {
    _room: Room,
    debug: PathBuf,
    child: std::process::Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Looking {
    fn start() -> Option<Self> {
        let flags = [
            concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim"),
            concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/include"),
            concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim/bridges"),
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ];
        let Some(search) = Program::compiled_if_possible("debug_files.c", &flags) else {
            crate::support::skip("no compiler with sanitizers");
            return None;
        };
        let room = Room::without_agent();
        split(&room, &Program::compiled("embedded.c"));
        let mut command = Command::new(search.path());
        command
            .arg(room.path("own"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program");
        Some(Self {
            debug: room.path("own.debug"),
            answers: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
            _room: room,
        })
    }

    /// How many symbols a debug file with these bytes has, or `None` if it is refused.
    #[track_caller]
    fn symbols_of(&mut self, content: &[u8]) -> Option<u64> {
        std::fs::write(&self.debug, content).expect("a file");
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "look").expect("it has not ended");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("an answer");
        assert!(line.ends_with('\n'), "it has ended");
        line.trim_end().parse().ok()
    }
}

#[test]
fn a_debug_file_needs_the_same_id_and_the_same_code() {
    let Some(mut looking) = Looking::start() else {
        return;
    };
    let whole = std::fs::read(&looking.debug).expect("a file");
    let symbols = looking.symbols_of(&whole).expect("its own");
    assert!(symbols > 50, "{symbols}");
    let changed = |place: usize| {
        let mut file = whole.clone();
        file[place] ^= 1;
        file
    };
    for byte in 0..20 {
        assert_eq!(
            looking.symbols_of(&changed(note(&whole) + byte)),
            None,
            "id, {byte}"
        );
    }
    let text = section_header(&whole, b".text");
    // Flags, address and size: an address that is another one, code that is none.
    for place in [text + 8, text + 16, text + 17, text + 32, text + 33] {
        let mut file = whole.clone();
        file[place] ^= 4;
        assert_eq!(looking.symbols_of(&file), None, "{}", place - text);
    }
    let machine = 18;
    assert_eq!(looking.symbols_of(&changed(machine)), None);
    // It is truncated where its sections are described, which is at its end.
    let headers = section_header(&whole, b".text");
    for end in [0, 16, 64, whole.len() / 2, headers] {
        assert_eq!(looking.symbols_of(&whole[..end]), None, "{end}");
    }
    // Symbols that are more than any program has, of a type that has no bytes, or none.
    let symtab = section_header(&whole, b".symtab");
    for (place, byte) in [(symtab + 32 + 5, 1), (symtab + 4, 8), (symtab + 40, 255)] {
        let mut file = whole.clone();
        file[place] = byte;
        let found = looking.symbols_of(&file);
        assert!(matches!(found, None | Some(0)), "{place}: {found:?}");
    }
    assert_eq!(looking.symbols_of(&whole), Some(symbols));
}

#[test]
fn bytes_of_a_debug_file_may_be_anything() {
    let Some(mut looking) = Looking::start() else {
        return;
    };
    let whole = std::fs::read(&looking.debug).expect("a file");
    let symbols = looking.symbols_of(&whole);
    let headers = usize::try_from(header(&whole).e_shoff.get(LittleEndian)).expect("small");
    let notes = note(&whole) - 16;
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 16).expect("64 bits") % below
    };
    let mut refused = 0;
    for turn in 0..3000 {
        let mut file = whole.clone();
        for _ in 0..=next(4) {
            // Most of them where something is decoded.
            let (from, bytes) = match next(4) {
                0 => (0, 64),
                1 => (notes, 36),
                2 => (headers, whole.len() - headers),
                _ => (0, whole.len()),
            };
            let values = [0, 1, 0x7f, 0x80, 0xff, next(256)];
            file[from + next(bytes)] = u8::try_from(values[next(values.len())]).expect("a byte");
        }
        let found = looking.symbols_of(&file);
        refused += usize::from(found.is_none());
        // The id and the code decide: nothing else can have added symbols.
        let most = symbols.expect("its own") * 64 + 4096;
        assert!(found.is_none_or(|it| it <= most), "{turn}: {found:?}");
    }
    assert!((300..2700).contains(&refused), "{refused}");
}
