//! Promise: the library works with every glibc since 2.17, and no C library keeps a program from running with it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Agent, Program, Room, Run, agent_library, command, copy, is_installed, skip};

/// What a loader before glibc 2.35 is like: it cannot be asked which module an address is in.
fn old_loader() -> Program {
    Program::library("old_loader.c", "liboldloader.so", &["-nostdlib"])
}

fn with_old_loader(run: Run, agent: &Agent) -> Vec<Vec<String>> {
    let outcome = run
        .preload_after_agent(old_loader().path())
        .unchanged(agent);
    let profile = outcome.assert_success().profile();
    profile
        .stacks()
        .into_iter()
        .map(|(frames, _)| frames)
        .collect()
}

#[test]
fn an_old_loader_leaves_stacks_whole() {
    let library = Program::library("chain_library.c", "libchain.so", &[]);
    let flags = ["-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let flags = [&flags[..], &[library.path().to_str().expect("a path")]].concat();
    let program = Program::compiled_with("chain.c", &flags);
    for (way, wanted) in [
        (
            "plain",
            ["main", "plain", "chain_start", "chain_middle", "chain_end"],
        ),
        (
            "thread",
            [
                "thread_main",
                "plain",
                "chain_start",
                "chain_middle",
                "chain_end",
            ],
        ),
    ] {
        let stacks = with_old_loader(program.run().arg(way), &Agent::at_interval(1));
        let ending = stacks
            .iter()
            .filter(|stack| stack.last().is_some_and(|it| it == "chain_end"));
        let ending: Vec<_> = ending.collect();
        assert!(!ending.is_empty(), "{way}: {stacks:#?}");
        for stack in ending {
            assert!(
                stack.ends_with(&wanted.map(str::to_owned)),
                "{way}: {stack:#?}"
            );
            assert!(!stack[0].starts_with('('), "{way}: {stack:#?}");
        }
    }
}

/// Each library takes the place of the one before, and is another one.
#[test]
fn an_old_loader_takes_no_library_for_the_one_before() {
    const LOADS: &str = "600";
    let libraries = ["libone.so", "libtwo.so", "libthree.so"];
    let libraries =
        libraries.map(|name| Program::library("plugin.c", name, &[&format!("-Wl,-soname,{name}")]));
    let mut run = Program::compiled("module_churn.c")
        .run()
        .args(&[LOADS, "1500"]);
    for library in &libraries {
        run = run.arg(library.path());
    }
    let stacks = with_old_loader(run, &Agent::at_interval(1));
    let entry = ["plugin_entry", "plugin_allocates"].map(str::to_owned);
    let in_plugins: Vec<_> = stacks
        .iter()
        .filter(|stack| stack.last() == entry.last())
        .collect();
    assert!(!in_plugins.is_empty(), "{stacks:#?}");
    for stack in in_plugins {
        assert!(
            stack.ends_with(&entry) && stack.contains(&"main".to_owned()),
            "{stack:#?}"
        );
    }
}

/// How a program ends, and what it prints. Without figures, which differ from run to run.
fn ending(program: &Path, preload: Option<&Path>, directory: &Path) -> (Option<i32>, String) {
    let mut run = Command::new(program);
    run.current_dir(directory);
    if let Some(preload) = preload {
        run.env("LD_PRELOAD", preload)
            .env("ALLOCSAMPLE_INTERVAL", "512")
            .env("ALLOCSAMPLE_OUTPUT", directory.join("x.allocsample"));
    }
    let Output {
        status,
        stdout,
        stderr,
    } = run.output().expect("it runs");
    let printed = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    (
        status.code(),
        printed.replace(|it: char| it.is_ascii_digit(), ""),
    )
}

/// Compiles a dynamically linked program for musl. Without a compiler, reports a skipped test and returns `None`.
fn compiled_for_musl(room: &Room, source: &str, flags: &[&str]) -> Option<PathBuf> {
    if !is_installed("musl-gcc") {
        skip("musl-gcc is not installed (Debian: musl-tools)");
        return None;
    }
    let program = room.path("program");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let compiled = Command::new("musl-gcc")
        .args(["-std=gnu11", "-O2", "-g", "-pthread", "-fno-builtin", "-w"])
        .args(flags)
        .arg("-o")
        .args([&program, &programs.join(source)])
        .output()
        .expect("musl-gcc");
    assert!(compiled.status.success(), "{source}: {compiled:?}");
    Some(program)
}

/// The profile of a program of musl that ends well.
fn profile_on_musl(
    room: &Room,
    program: &Path,
    interval: &str,
) -> crate::support::profile::Profile {
    let profile = room.path("x.allocsample");
    let ran = Command::new(program)
        .current_dir(room.directory())
        .env("LD_PRELOAD", agent_library())
        .env("ALLOCSAMPLE_INTERVAL", interval)
        .env("ALLOCSAMPLE_OUTPUT", &profile)
        .output()
        .expect("it runs");
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(ran.stdout, b"done\n", "{ran:?}");
    crate::support::profile::Profile::read(&profile)
}

/// musl's calloc calls malloc by name, and others of its functions call one another.
#[test]
fn a_block_of_musl_counts_once_whichever_function_gave_it() {
    let room = Room::without_agent();
    let flags = ["-Wl,--eh-frame-hdr"];
    let Some(program) = compiled_for_musl(&room, "blocks_of_libc.c", &flags) else {
        return;
    };
    let profile = profile_on_musl(&room, &program, "1");
    for function in [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "posix_memalign",
        "memalign",
        "aligned_alloc",
        "valloc",
    ] {
        let site = profile.site(&format!("by_{function}"));
        assert_eq!(site.samples, 100, "{function}");
        assert_eq!(site.live_bytes, 100.0 * 4096.0, "{function}");
    }
}

/// musl's dladdr does not say how large a function is; and the bridge's own allocations are the first that the process makes.
#[test]
fn a_bridge_joins_a_program_of_musl_and_nothing_counts_twice() {
    const BYTES: f64 = 1000.0 * 4096.0;
    let room = Room::without_agent();
    let flags = ["-rdynamic", "-Wl,--eh-frame-hdr"];
    let Some(program) = compiled_for_musl(&room, "looks_like_v8.c", &flags) else {
        return;
    };
    let profile = profile_on_musl(&room, &program, "4K");
    profile.row("heaps", "name", "javascript");
    let exact = profile.total("allocated_bytes_exact");
    assert!((BYTES..1.1 * BYTES).contains(&exact), "{exact}");
}

/// PHP's bridge asks for the size of a variable; without it, profiles have no functions of PHP.
#[test]
fn bridges_know_where_functions_and_variables_of_a_program_of_musl_end() {
    let room = Room::without_agent();
    let shim = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c_shim");
    let include = format!("{shim}/include");
    let bridges = format!("{shim}/bridges");
    let flags = ["-rdynamic", shim, &include, &bridges];
    let Some(program) = compiled_for_musl(&room, "symbol_extents.c", &flags) else {
        return;
    };
    let ran = Command::new(program).output().expect("it runs");
    assert_eq!(ran.stdout, b"done\n", "{ran:?}");
}

#[test]
fn a_program_of_musl_keeps_its_output_and_its_status() {
    let room = Room::without_agent();
    for source in [
        "hello.c",
        "leaves_silently.c",
        "own_malloc.c",
        "realloc_race.c",
    ] {
        let Some(program) = compiled_for_musl(&room, source, &[]) else {
            return;
        };
        let plain = ending(&program, None, room.directory());
        let with = ending(&program, Some(&agent_library()), room.directory());
        assert_eq!(with, plain, "{source}");
        let profile = room.path("x.allocsample");
        if source == "hello.c" {
            let profile = crate::support::profile::Profile::read(&profile);
            // 1,000 blocks, each of which eight sample points fall into on average.
            assert!(profile.site("allocate_and_greet").samples > 900);
        }
        let _ = fs::remove_file(&profile);
    }
}

/// The loader of this machine, its libc and the files that belong to it, and nothing else.
fn bare_root(room: &Room) -> Option<PathBuf> {
    let root = room.path("root");
    let listed = Command::new("ldd").arg(command()).output().ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for file in listed
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        let to = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(to.parent()?).ok()?;
        copy(&fs::canonicalize(file).ok()?, &to);
    }
    for directory in ["tmp", "proc"] {
        fs::create_dir_all(root.join(directory)).ok()?;
    }
    Some(root)
}

#[test]
fn a_root_with_only_libc_and_its_loader_is_enough() {
    if !crate::support::is_root() {
        return skip("another root directory needs root");
    }
    let room = Room::without_agent();
    let Some(root) = bare_root(&room) else {
        return skip("this machine's libc cannot be copied");
    };
    copy(&agent_library(), &root.join("tmp/liballocsample.so"));
    copy(command(), &root.join("tmp/allocsample"));
    copy(Program::compiled("hello.c").path(), &root.join("tmp/hello"));
    // The mount ends with its namespace.
    const ENTER: &str = r#"mount -t proc proc "$0/proc" && exec chroot "$0" "$@""#;
    let in_root = |arguments: &[&str]| {
        Command::new("unshare")
            .args(["--mount", "sh", "-c", ENTER])
            .arg(&root)
            .args(arguments)
            .output()
            .expect("unshare")
    };
    let run = in_root(&[
        "/tmp/allocsample",
        "run",
        "--interval",
        "4K",
        "-o",
        "/tmp/x.allocsample",
        "--",
        "/tmp/hello",
    ]);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    assert_eq!(run.stdout, b"hello\n");
    let report = in_root(&[
        "/tmp/allocsample",
        "report",
        "--sort",
        "allocated",
        "/tmp/x.allocsample",
    ]);
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("allocate_and_greet"), "{report}");
}

/// A command that is installed alone carries the library; this build of it carries none, and says so.
#[test]
fn an_installed_directory_works_by_itself() {
    let room = Room::new();
    let installed = room.output(&["install", "--into", "usr"]);
    assert!(installed.status.success(), "{installed:?}");
    for file in [
        "bin/allocsample",
        "lib/allocsample/liballocsample.so",
        "share/man/man1/allocsample.1",
        "share/man/man1/allocsample-run.1",
        "share/bash-completion/completions/allocsample",
        "share/zsh/site-functions/_allocsample",
        "share/fish/vendor_completions.d/allocsample.fish",
    ] {
        let about = fs::metadata(room.path("usr").join(file)).expect(file);
        // Everybody may read it: a program may run as any user.
        assert_eq!(about.permissions().mode() & 0o444, 0o444, "{file}");
    }
    let moved = room.path("elsewhere");
    fs::rename(room.path("usr"), &moved).expect("it can be moved");
    let program = Program::compiled("hello.c");
    let ran = Command::new(moved.join("bin/allocsample"))
        .args(["run", "--interval", "4K", "-o", "x.allocsample", "--"])
        .arg(program.path())
        .current_dir(room.directory())
        .env_remove("ALLOCSAMPLE_LIBRARY")
        .output()
        .expect("it runs");
    assert_eq!(ran.stdout, b"hello\n", "{ran:?}");
    assert!(room.path("x.allocsample").exists(), "{ran:?}");
}

#[test]
fn installing_replaces_a_link_and_does_not_follow_it() {
    let room = Room::new();
    let library = room.path("usr/lib/allocsample/liballocsample.so");
    fs::create_dir_all(library.parent().expect("a directory")).expect("a directory");
    let target = room.path("target");
    fs::write(&target, "somebody's").expect("a file");
    symlink(&target, &library).expect("a link");
    let installed = room.output(&["install", "--no-manual", "--into", "usr"]);
    assert!(installed.status.success(), "{installed:?}");
    assert_eq!(fs::read(&target).expect("a file"), b"somebody's");
    assert!(!fs::symlink_metadata(&library).expect("a file").is_symlink());
    assert!(!room.path("usr/share").exists());
}
