//! Promise: whenever the attaching command is killed, the program goes on as if nobody had been there, and can be attached
//! to again.
#![cfg(target_arch = "x86_64")]

mod support;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use support::attached::Attached;
use support::room::stderr;
use support::skip;

/// `PTRACE_SEIZE`: from here on the command has somebody who could suffer.
const SEIZE: u64 = 0x4206;
const SYS_PWRITE64: u64 = 18;
const SYS_PTRACE: u64 = 101;

/// Runs the command under our own ptrace, and kills it when it is about to do the step of this number; steps are its
/// requests to ptrace and its writes to the program's memory. Whether it came that far.
#[expect(clippy::zombie_processes, reason = "waitpid sees its end")]
fn kill_at(step: usize, mut command: Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: a system call, which allocates nothing.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let child = command.spawn().expect("the command");
    let pid = Pid::from_raw(child.id().cast_signed());
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL;
    // It stops at its exec.
    waitpid(pid, None).expect("the command");
    ptrace::setoptions(pid, options).expect("the command");
    let mut signal: Option<Signal> = None;
    let mut is_entry = true;
    let mut steps = 0;
    loop {
        ptrace::syscall(pid, signal.take()).expect("the command");
        match waitpid(pid, None).expect("the command") {
            WaitStatus::PtraceSyscall(_) => {
                let registers = ptrace::getregs(pid).expect("the command");
                let is_step = match registers.orig_rax {
                    SYS_PTRACE => steps > 0 || registers.rdi == SEIZE,
                    SYS_PWRITE64 => steps > 0,
                    _ => false,
                };
                steps += usize::from(is_entry && is_step);
                if is_entry && is_step && steps == step {
                    ptrace::kill(pid).expect("the command");
                    waitpid(pid, None).expect("the command");
                    return true;
                }
                is_entry = !is_entry;
            }
            WaitStatus::Stopped(_, other) => signal = Some(other),
            _ => return false,
        }
    }
}

/// Attaches and detaches. A thread that was started for a command that was killed may be at either still, and comes to its
/// end between two of our tries.
fn attach_and_detach(running: &Attached) {
    let pid = running.pid();
    let mut said = Vec::new();
    for _ in 0..100 {
        let attached = running.room.output(&["attach", &pid]);
        let detached = running.room.output(&["detach", &pid, "--no-symbolize"]);
        if detached.status.success() {
            return;
        }
        said = vec![stderr(&attached), stderr(&detached)];
    }
    panic!("{said:?}");
}

/// Kills the command at each of its steps, while the program does this in the thread that is borrowed.
fn kill_at_each_step(how: &str, command: &[&str]) {
    let mut running = Attached::start();
    // The first attach loads the library, which later ones find.
    attach_and_detach(&running);
    running.ask(&format!("wait {how}"));
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

#[test]
fn registers_and_signals_are_the_programs_own_when_the_attach_is_killed() {
    if !std::is_x86_feature_detected!("avx2") {
        return skip("the processor has no AVX2");
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
