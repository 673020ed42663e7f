//! Promise: whenever the attaching command is killed, the program goes on as if nobody had been there, and the next command
//! finishes or removes what was begun.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Program;
use crate::support::attached::Attached;
use crate::support::room::stderr;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// `PTRACE_SEIZE`: from here on the command has somebody who could suffer.
const SEIZE: u64 = 0x4206;
const SYS_PWRITE64: u64 = nix::libc::SYS_pwrite64 as u64;
const SYS_PTRACE: u64 = nix::libc::SYS_ptrace as u64;

/// A helper's memory begins with its code, on pages of its own: see `src/attach/machine/`.
const CODE_BYTES: u64 = match cfg!(target_arch = "x86_64") {
    true => 4 << 10,
    false => 64 << 10,
};

/// The number and the first argument of the system call that a process is about to make.
fn call_of(pid: Pid) -> (u64, u64) {
    let registers = ptrace::getregs(pid).expect("the command");
    #[cfg(target_arch = "x86_64")]
    return (registers.orig_rax, registers.rdi);
    #[cfg(target_arch = "aarch64")]
    return (registers.regs[8], registers.regs[0]);
}

/// Runs the command under our own ptrace, and kills it when it is about to do the step of this number. Whether it came that far.
fn kill_at(step: usize, command: Command) -> bool {
    let (status, _) = follow(
        command,
        |at| {
            if at == step { Then::Kill } else { Then::GoOn }
        },
    );
    matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _))
}

/// What a command that is about to do a step does.
enum Then {
    GoOn,
    Kill,
}

/// Runs the command under our own ptrace until it ends. Steps are its requests to ptrace and its writes to the program's memory,
/// counted from 1. Returns how it ended, and what it wrote to stderr.
#[expect(clippy::zombie_processes, reason = "waitpid sees its end")]
fn follow(mut command: Command, mut at: impl FnMut(usize) -> Then) -> (WaitStatus, String) {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: a system call, which allocates nothing.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let mut child = command.spawn().expect("the command");
    let pid = Pid::from_raw(child.id().cast_signed());
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
    // It stops at its exec.
    waitpid(pid, None).expect("the command");
    ptrace::setoptions(pid, options).expect("the command");
    let mut signal: Option<Signal> = None;
    let mut is_entry = true;
    let mut steps = 0;
    let ended = loop {
        ptrace::syscall(pid, signal.take()).expect("the command");
        match waitpid(pid, None).expect("the command") {
            WaitStatus::PtraceSyscall(_) => {
                let (call, first_argument) = call_of(pid);
                let is_step = match call {
                    SYS_PTRACE => steps > 0 || first_argument == SEIZE,
                    SYS_PWRITE64 => steps > 0,
                    _ => false,
                };
                steps += usize::from(is_entry && is_step);
                if is_entry && is_step && matches!(at(steps), Then::Kill) {
                    ptrace::kill(pid).expect("the command");
                    break waitpid(pid, None).expect("the command");
                }
                is_entry = !is_entry;
            }
            WaitStatus::Stopped(_, other) => signal = Some(other),
            ended => break ended,
        }
    };
    let mut said = String::new();
    let mut errors = child.stderr.take().expect("a pipe");
    errors.read_to_string(&mut said).expect("text");
    (ended, said)
}

/// Attaches and detaches. A thread that was started for a command that was killed may have attached already.
fn attach_and_detach(running: &Attached) {
    let pid = running.pid();
    let attached = running.insist(&["attach", &pid]);
    let is_attached = attached.status.success() || stderr(&attached).contains("already attached");
    assert!(is_attached, "{}", stderr(&attached));
    let detached = running.insist(&["detach", &pid, "--no-symbolize"]);
    assert!(detached.status.success(), "{}", stderr(&detached));
}

/// What of a command is in the process: threads, descriptors, and mappings with the name of a helper's memory.
fn state(running: &Attached) -> (usize, usize, usize) {
    let regions = running.mapped_files();
    let regions = regions
        .iter()
        .filter(|path| path.contains("allocsample-attach"));
    (
        running.entries("task"),
        running.entries("fd"),
        regions.count(),
    )
}

/// Kills the command at each of its steps, while the program does this in the thread that is borrowed.
fn kill_at_each_step(how: &str, command: &[&str]) {
    let mut running = Attached::start();
    // The first attach loads the library, which later ones find.
    attach_and_detach(&running);
    running.ask(&format!("wait {how}"));
    let before = state(&running);
    assert_eq!(before.2, 0);
    let mut step = 0;
    loop {
        step += 1;
        if command[0] == "detach" {
            let output = running.room.output(&["attach", &running.pid()]);
            assert!(output.status.success(), "{step}: {}", stderr(&output));
        }
        let pid = running.pid();
        let arguments = [&command[..1], &[&pid], &command[1..]].concat();
        let was_killed = kill_at(step, running.room.command(&arguments));
        attach_and_detach(&running);
        assert_eq!(state(&running), before, "{step}");
        if !was_killed {
            break;
        }
    }
    assert!(step > 30, "{step}");
    if how == "sleep" {
        assert_eq!(running.answer(), "done");
    } else {
        // That it ends says that its signal mask is its own again; that it is content, that its registers were.
        running.signal();
        assert_eq!(running.answer(), "done");
    }
    running.ask("churn 1000");
    running.ends_well();
}

/// Each step, because each is another state of the borrowed thread; `scripts/attach-cycles --kill` kills at random times.
#[test]
fn commands_killed_at_each_step_leave_a_program_that_changes_users_as_it_was() {
    const STEPS: usize = 120;
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let plugin = plugin.path().to_str().expect("a path");
    let mut running = Attached::start_other("rendezvous.c", &[plugin, "ids"]);
    attach_and_detach(&running);
    let before = state(&running);
    let pid = running.pid();
    for step in 1..=STEPS {
        for command in [
            ["attach", &pid, "--interval", "16K"],
            ["detach", &pid, "--no-symbolize", "--despite-seccomp"],
        ] {
            kill_at(step, running.room.command(&command));
            // Every thread answers a change of user.
            assert_eq!(running.ask("turn"), "done");
        }
    }
    attach_and_detach(&running);
    assert_eq!(state(&running), before);
    assert_eq!(running.ask("turn"), "done");
    running.ends_well();
}

/// Whether a helper has answered, or wants the library, and waits until the command has noticed.
fn has_a_waiting_helper(running: &Attached) -> bool {
    // As `src/attach/helper.rs` has them: the second word after the code, and its values.
    const STATE_AT: u64 = CODE_BYTES + 8;
    const WAITING: [u64; 2] = [1, 3];
    let Some(region) = running.mapped_at("allocsample-attach") else {
        return false;
    };
    let memory = File::open(format!("/proc/{}/mem", running.pid())).expect("its memory");
    let mut state = [0; 8];
    let is_read = memory.read_exact_at(&mut state, region + STATE_AT).is_ok();
    is_read && WAITING.contains(&u64::from_le_bytes(state))
}

/// A helper that counted its sleeps instead of the time would end at once, since each change of user cuts its sleep short.
#[test]
fn a_helper_waits_for_its_command_while_users_are_changed() {
    const MOMENT: Duration = Duration::from_millis(1500);
    // Less than the ten seconds for which a helper waits.
    const MOMENTS: usize = 3;
    let plugin = Program::library("plugin.c", "libplugin.so", &[]);
    let plugin = plugin.path().to_str().expect("a path");
    let mut running = Attached::start_other("rendezvous.c", &[plugin, "ids"]);
    attach_and_detach(&running);
    let before = state(&running);
    let pid = running.pid();
    for arguments in [
        ["attach", &pid, "--interval=16K"],
        ["detach", &pid, "--no-symbolize"],
    ] {
        let mut pauses = 0;
        let mut endings = Vec::new();
        // Not if it has found no thread for ten seconds.
        let is_done = (0..10).any(|_| {
            let (status, said) = follow(running.room.command(&arguments), |_| {
                if pauses < MOMENTS && has_a_waiting_helper(&running) {
                    pauses += 1;
                    std::thread::sleep(MOMENT);
                }
                Then::GoOn
            });
            let is_well = matches!(status, WaitStatus::Exited(_, 0));
            assert!(pauses == 0 || is_well, "{pauses}: {status:?}: {said}");
            endings.push((status, said));
            pauses > 0
        });
        assert!(is_done, "{arguments:?}: {endings:?}");
        assert_eq!(running.ask("turn"), "done");
    }
    running.settle(before.0);
    assert_eq!(state(&running), before);
    running.ends_well();
}

/// A helper that nobody comes back to ends by itself: its answer is there for a while, or gone with its memory.
#[test]
fn a_command_that_stood_still_has_its_answer_or_says_so() {
    const LONGER_THAN_A_HELPER_WAITS: Duration = Duration::from_secs(12);
    let running = Attached::start();
    attach_and_detach(&running);
    let before = state(&running);
    let pid = running.pid();
    let mut has_stood_still = false;
    let (status, said) = follow(running.room.command(&["attach", &pid]), |_| {
        if !has_stood_still && has_a_waiting_helper(&running) {
            has_stood_still = true;
            std::thread::sleep(LONGER_THAN_A_HELPER_WAITS);
        }
        Then::GoOn
    });
    assert!(has_stood_still);
    match status {
        WaitStatus::Exited(_, 0) => {}
        WaitStatus::Exited(_, 1) => {
            assert!(said.contains("no CPU time for ten seconds"), "{said}");
        }
        other => panic!("{other:?}"),
    }
    attach_and_detach(&running);
    assert_eq!(state(&running), before);
    running.ends_well();
}

/// Kills a command as soon as the process has this.
fn kill_when(running: &Attached, command: &[&str], is_so: impl Fn(&Attached) -> bool) {
    let mut step = 0;
    while !is_so(running) {
        step += 1;
        let command = running.room.command(command);
        assert!(kill_at(step, command), "it was never so");
    }
}

#[test]
fn the_status_of_a_process_says_what_an_interrupted_attach_has_left() {
    let running = Attached::start();
    let pid = running.pid();
    kill_when(&running, &["attach", &pid], |running| state(running).2 > 0);
    let status = running.done(&["ctl", &pid, "status"]);
    let kib = (CODE_BYTES >> 10) + 96;
    assert!(status.contains(&format!("{kib} KiB")), "{status}");
    assert!(
        status.contains("of an interrupted attach or detach; the next attach or detach removes it")
    );
    // It has not loaded the agent, but what is left goes.
    running.fails(&["detach", &pid], "has not loaded the agent");
    assert_eq!(state(&running).2, 0);
    running.fails(&["ctl", &pid, "status"], "writes no profile");
    running.ends_well();
}

#[test]
fn a_descriptor_of_an_interrupted_attach_is_closed_by_the_next() {
    let running = Attached::start();
    let before = state(&running);
    kill_when(&running, &["attach", &running.pid()], |running| {
        state(running).1 > before.1
    });
    attach_and_detach(&running);
    assert_eq!(state(&running), before);
    running.ends_well();
}

#[test]
fn an_attach_to_an_attached_process_removes_what_an_interrupted_detach_has_left() {
    let running = Attached::start();
    let pid = running.pid();
    running.attach(&[]);
    let before = state(&running);
    let detach = ["detach", &pid, "--no-symbolize"];
    kill_when(&running, &detach, |running| state(running).2 > 0);
    running.fails(&["attach", &pid], "already attached");
    assert_eq!(state(&running), before);
    running.detach();
    running.ends_well();
}

#[test]
fn two_commands_at_once_come_one_after_the_other() {
    let running = Attached::start();
    let before = state(&running);
    let pid = running.pid();
    let start = || {
        let mut command = running.room.command(&["attach", &pid]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("the command")
    };
    let all: Vec<_> = (0..4).map(|_| start()).collect();
    let mut attached = 0;
    for child in all {
        let output = child.wait_with_output().expect("the command");
        attached += usize::from(output.status.success());
        let said = stderr(&output);
        assert!(
            said.is_empty() || said.contains("already attached"),
            "{said}"
        );
    }
    assert_eq!(attached, 1);
    running.detach();
    assert_eq!(state(&running), before);
    running.ends_well();
}

#[test]
fn registers_and_signals_are_the_programs_own_when_the_attach_is_killed() {
    #[cfg(target_arch = "x86_64")]
    if !std::is_x86_feature_detected!("avx2") {
        return crate::support::skip("the processor has no AVX2");
    }
    kill_at_each_step("compute", &["attach"]);
}

#[test]
fn a_thread_that_allocates_goes_on_when_the_detach_is_killed() {
    kill_at_each_step("churn", &["detach", "--no-symbolize"]);
}

#[test]
fn a_thread_that_sleeps_sleeps_on_when_the_attach_is_killed() {
    kill_at_each_step("sleep", &["attach"]);
}
