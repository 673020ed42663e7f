//! Promise: the agent comes into a running process, counts right from then on, and goes again, and the program does not
//! notice any of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::attached::{Attached, is_in_state};
use crate::support::profile::Profile;
use crate::support::room::{stderr, stdout};
use crate::support::{Program, Room, allocators, is_installed, is_root, skip, truth};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use rustix::process::{Pid, Resource, Rlimit, getrlimit};

fn library_path(library: &Program) -> &str {
    library.path().to_str().expect("a path")
}

#[track_caller]
fn assert_is(profile: &Profile, function: &str, bytes: f64, live_bytes: f64) {
    let site = profile.site(function);
    let z = truth::z(site.allocated_bytes, bytes, site.allocated_bytes_stderr);
    assert!(z.abs() < 4.0, "{function}: {site:?} for {bytes}, z {z:+.1}");
    let z = truth::z(site.live_bytes, live_bytes, site.live_bytes_stderr);
    assert!(
        z.abs() < 4.0,
        "{function}: {site:?} for {live_bytes} live, z {z:+.1}"
    );
}

#[test]
fn attach_for_some_seconds_ends_with_a_detach_also_when_it_is_interrupted() {
    let mut running = Attached::start();
    let pid = running.pid();
    for (seconds, is_interrupted) in [("1", false), ("3600", true)] {
        let attach = ["attach", &pid, "--interval", "4K", "--seconds", seconds];
        let mut command = running.room.command(&attach);
        let mut command = command.stdout(Stdio::piped()).spawn().expect("the command");
        let mut said = BufReader::new(command.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert!(line.starts_with(&format!("process {pid}: ")), "{line}");
        running.ask("allocate first 20000 500");
        if is_interrupted {
            let command = nix::unistd::Pid::from_raw(command.id().cast_signed());
            nix::sys::signal::kill(command, nix::sys::signal::Signal::SIGINT).expect("the command");
        }
        assert_eq!(command.wait().expect("the command").code(), Some(0));
        line.clear();
        said.read_line(&mut line).expect("a line");
        let (path, _) = line.split_once(": ").expect("a path");
        let profile = Profile::read(std::path::Path::new(path));
        assert!(profile.exit().starts_with("detach"), "{}", profile.exit());
        assert!(profile.site("first").samples > 0 || !is_interrupted);
        running.ask("free");
    }
    running.ends_well();
}

#[test]
fn what_is_allocated_from_the_attach_to_the_detach_is_estimated_and_nothing_else() {
    let mut running = Attached::start();
    running.ask("allocate first 20000 500");
    running.attach(&["--interval", "4K"]);
    running.ask("free");
    running.ask("allocate second 20000 500");
    running.ask("free");
    running.ask("allocate third 30000 400");
    let profile = running.detach();
    assert_eq!(profile.site("first").samples, 0);
    assert_is(&profile, "second", 20000.0 * 500.0, 0.0);
    assert_is(&profile, "third", 30000.0 * 400.0, 30000.0 * 400.0);
    // What goes on now belongs to no profile, and the next one begins with nothing.
    running.ask("free");
    running.ask("allocate first 20000 500");
    running.attach(&["--interval", "1"]);
    running.ask("free");
    running.ask("allocate second 1000 500");
    let profile = running.detach();
    assert_eq!(profile.site("first").samples, 0);
    assert_eq!(profile.site("third").samples, 0);
    let site = profile.site("second");
    // Every allocation: no error. A thread counts from its first look at the agent, within a mebibyte.
    assert!(
        site.samples <= 1000 && site.allocated_bytes == 500.0 * site.allocations,
        "{site:?}"
    );
    running.ask("free");
    running.ends_well();
}

/// In a recording that began late, growth counts only if the resident set confirms it.
#[test]
fn the_memory_of_a_program_with_few_samples_is_read_from_the_attach_on() {
    const WANTED: usize = 4;
    const PATIENCE: Duration = Duration::from_secs(60);
    let mut running = Attached::start();
    let path = running.attach(&[]);
    let begun = Instant::now();
    let readings = |running: &Attached| {
        let sql = "SELECT sum(resident_bytes) FROM residency GROUP BY time_ns ORDER BY time_ns";
        let profile = path.to_str().expect("a path");
        let queried = running
            .room
            .output(&["query", "--format", "csv", profile, sql]);
        let lines = stdout(&queried);
        let numbers = lines
            .lines()
            .skip(1)
            .map(|line| line.parse().expect("a number"));
        numbers.collect::<Vec<f64>>()
    };
    let mut found = readings(&running);
    while found.len() < WANTED && begun.elapsed() < PATIENCE {
        // Ten samples or so, of which the ring holds thousands.
        running.ask("allocate first 1000 5000");
        std::thread::sleep(Duration::from_millis(100));
        found = readings(&running);
    }
    assert!(found.len() >= WANTED, "{found:?}");
    assert!(
        found.is_sorted() && found[0] < found[WANTED - 1],
        "{found:?}"
    );
    running.detach();
    running.ends_well();
}

#[test]
fn blocks_cross_attach_and_detach_in_every_allocator() {
    let mut preloads = vec![("libc", None)];
    preloads.extend(
        allocators::installed()
            .into_iter()
            .map(|(name, path)| (name, Some(path))),
    );
    for (name, library) in preloads {
        let mut running = Attached::start_as(|room| {
            let mut command = Command::new(room.path("attached"));
            if let Some(library) = &library {
                command.env("LD_PRELOAD", library);
            }
            command
        });
        for function in ["first", "second", "third"] {
            running.ask(&format!("allocate {function} 5000 300"));
        }
        running.attach(&["--interval", "1K"]);
        running.ask("resize");
        for function in ["first", "second", "third"] {
            running.ask(&format!("allocate {function} 5000 300"));
        }
        running.ask("resize");
        let profile = running.detach();
        for function in ["first", "second", "third"] {
            assert!(profile.site(function).samples > 0, "{name}: {function}");
        }
        running.ask("resize");
        running.attach(&["--interval", "1K"]);
        running.ask("free");
        let profile = running.detach();
        // None of the blocks that it saw freed is its own.
        assert_eq!(profile.total("live_bytes"), 0.0, "{name}");
        running.ends_well();
    }
}

#[test]
fn detach_leaves_every_slot_descriptor_thread_and_file_as_it_was() {
    let mut running = Attached::start();
    running.ask("churn 1000");
    // Until it was there once, the loader has no list of it.
    running.attach(&[]);
    running.detach();
    running.settle(1);
    let state = |running: &Attached| {
        let maps = running.mapped_files();
        (running.entries("fd"), running.entries("task"), maps)
    };
    let (slots, before) = (running.ask("slots"), state(&running));
    for _ in 0..3 {
        running.attach(&["--interval", "1K"]);
        // Enough that the drain thread is needed.
        running.ask("churn 40000");
        assert_ne!(running.ask("slots"), slots);
        let profile = running.detach();
        assert!(profile.number("samples") > 1000.0);
        running.settle(1);
        assert_eq!(running.ask("slots"), slots);
        assert_eq!(state(&running), before);
    }
    assert!(
        !running
            .room
            .names()
            .iter()
            .any(|name| name.ends_with(".ring"))
    );
    running.ends_well();
}

#[test]
fn the_first_attach_and_detach_leave_the_slots_as_they_were_too() {
    let mut running = Attached::start();
    let slots = running.ask("slots");
    running.attach(&[]);
    running.detach();
    assert_eq!(running.ask("slots"), slots);
    running.ends_well();
}

#[test]
fn a_filter_ends_with_its_profile() {
    let mut running = Attached::start();
    running.attach(&["--interval", "1"]);
    // The program waits, and hears of it when it next allocates.
    let pid = running.pid();
    let filter = ["ctl", &pid, "filter", "--threads", "nobody"];
    let asked = running.room.output(&filter);
    assert!(
        stderr(&asked).contains("when the program next allocates"),
        "{}",
        stderr(&asked)
    );
    running.ask("churn 2000");
    running.ask("allocate first 5000 500");
    assert_eq!(running.detach().site("first").samples, 0);
    running.attach(&["--interval", "1"]);
    running.ask("allocate second 5000 500");
    // A thread looks at the agent within a mebibyte.
    assert!(running.detach().site("second").samples > 2000);
    running.ends_well();
}

#[test]
fn a_thread_in_the_middle_of_malloc_is_no_obstacle() {
    for threads in [1, 6] {
        let mut running = Attached::start();
        running.ask(&format!("threads {threads}"));
        for _ in 0..5 {
            running.attach(&["--interval", "8K"]);
            running.ask("well");
            let profile = running.detach();
            assert!(profile.site("churner").samples + profile.site("churn").samples > 0);
            running.ask("well");
        }
        running.ends_well();
    }
}

#[test]
fn libraries_may_come_and_go_while_it_attaches_and_detaches() {
    let room = Room::new();
    room.add(&Program::compiled("dlopen_storm.c"), "storm");
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let other = Program::library("plugin.c", "libotherplugin.so", &[]);
    let mut attached_times = 0;
    // The program loads and unloads libraries all the time, in one thread of eight, and ends by itself.
    for _ in 0..5 {
        let mut child = Command::new(room.path("storm"))
            .arg(plugin.path())
            .arg(other.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program");
        let pid = child.id().to_string();
        while child.try_wait().expect("a child").is_none() {
            let attached = room.output(&["attach", &pid, "-o", "storm.allocsample"]);
            if attached.status.success() {
                attached_times += 1;
                // It may be at its end by now.
                room.output(&["detach", &pid, "--no-symbolize"]);
            }
        }
        let status = child.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
    assert!(attached_times > 0);
}

#[test]
fn libraries_that_come_later_are_seen() {
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let hidden = Program::library("plugin.c", "libbyname.so", &["-Wl,-soname,libbyname.so"]);
    let runpath = format!(
        "-Wl,--enable-new-dtags,-rpath,{}",
        hidden.path().parent().expect("a directory").display()
    );
    let mut running = Attached::start_with(&[&runpath], |room| Command::new(room.path("attached")));
    running.attach(&["--interval", "1K"]);
    // By its path, and by a name that only the program's own RUNPATH leads to.
    for path in [library_path(&plugin), "libbyname.so"] {
        running.ask(&format!("open {path}"));
        running.ask("use 2000 700");
    }
    let profile = running.detach();
    let bytes = 2.0 * 2000.0 * 700.0;
    assert_is(&profile, "plugin_allocates", bytes, bytes);
    running.ask("free");
    running.ask("use 100 700");
    running.ends_well();
}

#[test]
fn a_thread_that_waits_is_not_woken() {
    for how in ["epoll", "sleep", "signal"] {
        let mut running = Attached::start();
        assert_eq!(running.ask(&format!("wait {how}")), "waiting");
        while !is_in_state(&running.pid(), 'S') {
            std::thread::yield_now();
        }
        for _ in 0..5 {
            running.attach(&["--interval", "8K"]);
            running.detach();
        }
        if how == "signal" {
            running.signal();
        }
        if how == "epoll" {
            assert_eq!(running.ask("churn 10"), "done");
        }
        assert_eq!(running.answer(), "done");
        running.ends_well();
    }
}

#[test]
fn pointers_to_functions_are_redirected_wherever_they_lead() {
    for flags in [
        &["-no-pie", "-fno-pic"][..],
        &["-no-pie", "-fno-pic", "-Wl,-z,now"],
        &["-fno-plt"],
        &["-Wl,-z,norelro"],
        &["-Wl,--hash-style=sysv"],
    ] {
        let mut running = Attached::start_lazily(flags);
        running.ask("pointers 10 500");
        running.attach(&["--interval", "1K"]);
        running.ask("pointers 2000 500");
        // Called for the first time: its slot is not bound yet.
        running.ask("allocate third 1000 500");
        let profile = running.detach();
        assert_is(&profile, "pointed", 4000.0 * 500.0, 2000.0 * 500.0);
        assert_is(&profile, "third", 1000.0 * 500.0, 1000.0 * 500.0);
        running.ask("pointers 10 500");
        running.ask("free");
        running.ends_well();
    }
}

/// The slot is bound lazily and holds an address of the program's own code, as an unbound one does; but it is a function's.
#[test]
fn a_hook_of_the_programs_own_in_a_lazily_bound_slot_is_kept() {
    let flags = ["-no-pie", "-fno-pic", "-Wl,-z,lazy,-z,norelro"];
    let mut running = Attached::start_lazily(&flags);
    let hooked = |running: &mut Attached| -> u64 {
        running.ask("allocate first 1000 500");
        running.ask("hooked").parse().expect("a number")
    };
    running.ask("hook");
    let before = hooked(&mut running);
    assert!(before >= 1000, "{before}");
    running.attach(&["--interval", "1K"]);
    let meanwhile = hooked(&mut running);
    assert!(meanwhile >= before + 1000, "{before}, then {meanwhile}");
    running.detach();
    let after = hooked(&mut running);
    assert!(after >= meanwhile + 1000, "{meanwhile}, then {after}");
    running.ask("free");
    running.ends_well();
}

/// The profile of a program that confines itself after the attach, which can only be read when it has ended.
fn profile_of_confined(confine: &str) -> Profile {
    let mut running = Attached::start();
    running.attach(&["--interval", "1K", "-o", "confined.allocsample"]);
    running.ask("allocate first 1000 500");
    running.ask(confine);
    running.ask("allocate second 2000 500");
    running.ask("free");
    running.ask("churn 20000");
    let (room, status) = running.end(3);
    assert_eq!(status.code(), Some(3), "{confine}: {status}");
    Profile::read(&room.path("confined.allocsample"))
}

#[test]
fn a_program_that_forbids_itself_system_calls_after_an_attach_goes_on() {
    for way in [
        "prctl",
        "prctl_by_number",
        "seccomp",
        "listener",
        "all_threads",
        "all_threads_after_one",
    ] {
        let profile = profile_of_confined(&format!("forbid {way}"));
        assert_is(&profile, "first", 1000.0 * 500.0, 0.0);
        assert_is(&profile, "second", 2000.0 * 500.0, 0.0);
    }
}

#[test]
fn a_program_that_gives_up_its_root_after_an_attach_loses_no_sample() {
    if !is_root() {
        return skip("only root may call chroot");
    }
    for command in ["chroot /proc", "chroot_by_number /proc"] {
        let profile = profile_of_confined(command);
        assert_is(&profile, "first", 1000.0 * 500.0, 0.0);
        assert_is(&profile, "second", 2000.0 * 500.0, 0.0);
    }
}

#[test]
fn pointers_that_only_the_loader_could_write_are_left_alone() {
    let plugin = Program::library("pointers_in_code.c", "libcode.so", &["-Wl,-z,notext"]);
    let mut running = Attached::start();
    running.ask(&format!("open {}", library_path(&plugin)));
    running.attach(&["--interval", "1K"]);
    running.ask("use 2000 700");
    let profile = running.detach();
    let bytes = 2000.0 * 700.0;
    assert_is(&profile, "plugin_allocates", bytes, bytes);
    running.ask("free");
    running.ends_well();
}

#[test]
fn registers_are_put_back_to_the_last_bit() {
    if !fs::read_to_string("/proc/cpuinfo").is_ok_and(|cpu| cpu.contains("avx2")) {
        return skip("the processor has no AVX2");
    }
    // In another thread, and in the one that is borrowed.
    let mut running = Attached::start();
    running.ask("compute");
    for _ in 0..5 {
        running.attach(&[]);
        running.ask("well");
        running.detach();
    }
    running.ends_well();
    let mut running = Attached::start();
    running.ask("wait compute");
    for _ in 0..20 {
        running.attach(&[]);
        running.detach();
    }
    running.signal();
    assert_eq!(running.answer(), "done");
    running.ends_well();
}

#[test]
fn a_program_that_ends_while_it_is_attached_to_leaves_a_whole_profile() {
    let mut running = Attached::start();
    running.attach(&["--interval", "1", "-o", "x.%n.allocsample"]);
    running.ask("allocate first 300 100");
    let (room, status) = running.end(5);
    assert_eq!(status.code(), Some(5));
    let profile = Profile::read(&room.path("x.attached.allocsample"));
    assert!(profile.is_complete());
    assert_eq!(profile.exit(), "exit");
    assert_eq!(profile.site("first").allocations, 300.0);
}

#[test]
fn children_are_left_alone_unless_they_are_asked_for() {
    for (options, profiles) in [(&[][..], 1), (&["--children", "follow"][..], 2)] {
        let mut running = Attached::start();
        running.attach(&[&["--interval", "1K", "-o", "x.%p.allocsample"], options].concat());
        running.ask("fork");
        running.ask("churn 1000");
        running.detach();
        let names = running.room.names();
        let found = names.iter().filter(|name| name.ends_with(".allocsample"));
        assert_eq!(found.count(), profiles, "{names:?}");
        running.ends_well();
    }
}

#[test]
fn a_dormant_agent_is_woken_and_sent_to_sleep() {
    let mut running = Attached::start_as(|room| {
        let mut command = Command::new(room.path("attached"));
        command
            .env("LD_PRELOAD", room.agent())
            .env("ALLOCSAMPLE_START", "off")
            .env("ALLOCSAMPLE_OUTPUT", room.path("x.allocsample"));
        command
    });
    running.ask("allocate first 10000 500");
    let pid = running.pid();
    let attach = ["attach", &pid, "--interval", "1K"];
    // Nothing is allocated while the command waits; the program obeys when it next is.
    let output = running.room.output(&attach);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    running.ask("churn 4000");
    running.ask("allocate second 10000 500");
    running.ask("free");
    running.fails(&attach, "already attached");
    let output = running.room.output(&["detach", &pid]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("was started under the agent: sampling is stopped"));
    running.ask("churn 4000");
    running.ask("allocate third 10000 500");
    let (room, status) = running.end(0);
    assert!(status.success());
    let profile = Profile::read(&room.path("x.allocsample"));
    assert!(profile.site("second").samples > 1000);
    // A sleeper passes frees on unseen; one that is awake does not.
    assert!(profile.site("second").live_bytes.abs() < 1.0);
    assert_eq!(
        (profile.site("first").samples, profile.site("third").samples),
        (0, 0)
    );
}

#[test]
fn a_process_that_cannot_see_the_library_gets_a_copy() {
    if !is_root() || !is_installed("unshare") {
        return skip("mount namespaces need root and unshare");
    }
    // The library's directory is empty for the program.
    let mut running = Attached::start_as(|room| {
        let agent = room.agent().parent().expect("a directory");
        let script = format!(
            "mount -t tmpfs none '{}' && exec '{}'",
            agent.display(),
            room.path("attached").display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
        command
    });
    running.attach(&["--interval", "1K"]);
    running.ask("allocate first 1000 500");
    let profile = running.detach();
    assert!(profile.site("first").samples > 0);
    running.ask("free");
    running.attach(&[]);
    running.detach();
    running.ends_well();
}

/// The library is opened in the process, which takes a descriptor.
#[test]
fn a_process_without_a_spare_descriptor_is_told_from_others_and_goes_on() {
    let running = Attached::start();
    let pid = Pid::from_raw(running.pid().parse().expect("a number"));
    assert!(pid.is_some());
    let of_process =
        |limit| rustix::process::prlimit(pid, Resource::Nofile, limit).expect("a limit");
    // Descriptors below the limit are all in use.
    let open = fs::read_dir(format!("/proc/{}/fd", running.pid())).expect("its files");
    let mut open: Vec<u64> = open
        .map(|file| {
            file.expect("a file")
                .file_name()
                .to_str()
                .expect("text")
                .parse()
                .expect("a number")
        })
        .collect();
    open.sort_unstable();
    let first_free = (0..).zip(&open).find(|&(number, &used)| number != used);
    let first_free = first_free.map_or(open.len() as u64, |(number, _)| number);
    let before = of_process(Rlimit {
        current: Some(first_free),
        maximum: getrlimit(Resource::Nofile).maximum,
    });
    running.fails(&["attach", &running.pid()], "no spare file descriptor");
    of_process(before);
    running.attach(&[]);
    running.detach();
    running.ends_well();
}

#[test]
fn a_process_that_cannot_start_a_thread_goes_on_and_nothing_is_left_in_it() {
    // So large are the stacks of its threads.
    let mut running = Attached::start_as(|room| {
        let script = format!(
            "ulimit -s 1048576 && exec '{}'",
            room.path("attached").display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    });
    let pid = Pid::from_raw(running.pid().parse().expect("a number"));
    assert!(pid.is_some());
    let of_process = |limit| rustix::process::prlimit(pid, Resource::As, limit).expect("a limit");
    let status =
        fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("the process");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|size| size.split_whitespace().next());
    let kib: u64 = size.expect("a size").parse().expect("a number");
    // The agent fits, a thread's stack does not.
    let before = of_process(Rlimit {
        current: Some((kib + (300 << 10)) << 10),
        maximum: getrlimit(Resource::As).maximum,
    });
    let (maps, descriptors) = (running.mapped_files(), running.entries("fd"));
    running.fails(
        &["attach", &running.pid()],
        "it cannot start a thread; its limit of address space leaves it",
    );
    assert_eq!(running.mapped_files(), maps);
    assert_eq!(running.entries("fd"), descriptors);
    running.ask("churn 1000");
    of_process(before);
    running.attach(&[]);
    running.detach();
    running.ends_well();
}

#[test]
fn a_process_in_a_container_is_attached_to_by_its_number_outside() {
    if !is_root() || !is_installed("unshare") {
        return skip("namespaces of mounts and processes need root and unshare");
    }
    // A file system, numbers of processes and a /proc of its own; the library and our files are not in it.
    let mut running = Attached::start_below(|room| {
        let root = room.path("root");
        let script = format!(
            "mkdir -p {root} && mount -t tmpfs none {root} && cd {root} && mkdir proc tmp lib64 lib usr etc &&
            mount -t proc none proc && for each in /lib /lib64 /usr; do [ ! -e $each ] || mount --bind $each .$each || exit; done &&
            cp {program} tmp/attached && exec chroot {root} /tmp/attached",
            root = root.display(),
            program = room.path("attached").display(),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", &script]);
        command
    });
    running.ask("threads 3");
    for _ in 0..2 {
        running.attach(&["--interval", "1K", "-o", "/tmp/x-%t.allocsample"]);
        running.ask("allocate first 1000 500");
        let status = running.done(&["ctl", &running.pid(), "status"]);
        assert!(status.contains("samples"), "{status}");
        let profile = running.detach();
        assert!(profile.site("first").samples > 0);
        running.ask("free");
    }
    assert_eq!(running.ask("well"), "done");
    running.ends_well();
}

/// How a program comes by an allocator that is not libc's.
#[test]
fn programs_with_an_allocator_linked_in_are_attached_to() {
    for (name, library) in allocators::installed() {
        let library = library.to_str().expect("a path");
        let flags = ["-Wl,--no-as-needed", library];
        let mut running = Attached::start_with(&flags, |room| Command::new(room.path("attached")));
        running.ask("allocate first 5000 300");
        running.ask("threads 3");
        // So rare that a busy machine's drain thread keeps up with three threads that do nothing but allocate.
        running.attach(&["--interval", "16K"]);
        running.ask("resize");
        for function in ["first", "second", "third"] {
            running.ask(&format!("allocate {function} 5000 300"));
        }
        let profile = running.detach();
        for function in ["first", "second", "third"] {
            assert!(profile.site(function).samples > 0, "{name}: {function}");
        }
        running.attach(&["--interval", "16K"]);
        running.ask("free");
        assert_eq!(running.ask("well"), "done");
        let profile = running.detach();
        assert!(profile.site("churner").samples > 0, "{name}");
        running.ends_well();
    }
}

#[test]
fn an_allocator_inside_the_program_is_told_and_blocks_of_libraries_are_seen() {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = source.join("tests/programs/bump_allocator.c");
    let flags = [source.to_str().expect("a path")];
    let mut running = Attached::start_with(&flags, |room| Command::new(room.path("attached")));
    let library = Program::library("plugin.c", "libplugin.so", &[]);
    running.ask("allocate first 1000 300");
    running.attach(&["--interval", "1"]);
    running.ask("resize");
    running.ask("allocate second 1000 300");
    let open = format!("open {}", library.path().display());
    running.ask(&open);
    running.ask("use 500 400");
    let profile = running.detach();
    assert_eq!(profile.site("second").samples, 0);
    assert_eq!(profile.site("plugin_allocates").samples, 500);
    let note = profile.report["notes"].to_string();
    assert!(note.contains("an allocator of its own past us"), "{note}");
    let path = profile.path().to_string_lossy();
    let said = stdout(&running.room.output(&["report", &path]));
    assert!(said.contains("brings its own malloc"), "{said}");
    running.ask("free");
    running.ends_well();
}

/// The ring is 4 MiB of a file, which nobody else gives back. The command must not write the profile beside the thread.
#[test]
fn a_detach_waits_for_the_drain_thread_which_lets_go_of_the_ring() {
    let mut running = Attached::start();
    running.attach(&["--interval", "1K", "-o", "late.allocsample"]);
    running.ask("churn 40000");
    let pid = running.pid();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process");
    let threads: Vec<i32> = tasks
        .map(|task| task.expect("a thread").file_name())
        .map(|name| name.to_string_lossy().parse().expect("a number"))
        .filter(|thread: &i32| thread.to_string() != pid)
        .collect();
    let [drain] = threads[..] else {
        panic!("{threads:?}");
    };
    // To the process a thread that is stopped is a disk that does not answer.
    let drain = nix::unistd::Pid::from_raw(drain);
    if ptrace::seize(drain, ptrace::Options::empty()).is_err() {
        skip("no thread can be stopped here");
        return;
    }
    ptrace::interrupt(drain).expect("the drain thread");
    waitpid(drain, Some(WaitPidFlag::__WALL)).expect("the drain thread");
    let has_ring = |running: &Attached| {
        let files = running.mapped_files();
        files.iter().any(|path| path.contains(".allocsample.ring"))
    };
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| running.room.output(&["detach", &pid]));
        // The agent answers after two seconds.
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert!(!detach.is_finished(), "the profile is not written yet");
        assert!(has_ring(&running), "it is not written yet");
        ptrace::detach(drain, None).expect("the drain thread");
        let output = detach.join().expect("a thread");
        assert!(output.status.success(), "{output:?}");
    });
    Profile::read(&running.room.path("late.allocsample")).is_accounted_for(1024.0);
    running.settle(1);
    assert!(!has_ring(&running));
    running.ends_well();
}
