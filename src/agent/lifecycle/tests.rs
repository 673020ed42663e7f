#![allow(clippy::indexing_slicing, reason = "a test may fail")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::vec::Vec;

use allocsample_record::{Figure, LostReason, RecordKind};

use super::*;
use crate::setup::Hooks;
use crate::trial::{Trial, agent};

const EVERY: &[(&str, &str)] = &[("INTERVAL", "1"), ("ON_FULL", "drop")];
const SELDOM: &[(&str, &str)] = &[("INTERVAL", "1G")];

#[test]
fn a_thread_that_ends_says_what_it_has_allocated() {
    let trial = Trial::begin(agent!(), EVERY);
    let (first, second) = (trial.thread(), trial.thread());
    trial.alloc(first, 0x1000, 24).unwrap();
    trial.alloc(second, 0x2000, 30).unwrap();
    trial.agent.on_thread_end(first);
    assert_eq!(trial.ends(), [(1, 24, 0)]);
    // What destructors allocate is another thread's, as the total is final.
    trial.alloc(first, 0x3000, 5).unwrap();
    assert_eq!(trial.samples()[2].thread, 3);
    // A thread that never came here has nothing to say.
    trial.agent.on_thread_end(trial.thread());
    assert_eq!(trial.ends().len(), 1);
}

#[test]
fn a_thread_without_a_sample_is_announced_when_it_ends() {
    let trial = Trial::begin(agent!(), SELDOM);
    let (first, second) = (trial.thread(), trial.thread());
    trial.alloc(first, 0x1000, 2 << 30).unwrap();
    trial.alloc(second, 0x2000, 24);
    assert_eq!(trial.starts(), [1]);
    trial.agent.on_thread_end(second);
    assert_eq!(trial.starts(), [1, 2]);
    assert_eq!(trial.ends(), [(2, 24, 0)]);
}

#[test]
fn a_thread_that_ends_gives_its_signal_stack_back() {
    static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);
    let hooks = Hooks {
        give_back_signal_stack: |address| {
            // One that is not there would be an error.
            assert_ne!(address, 0);
            GIVEN_BACK.store(address, Ordering::Relaxed);
        },
        ..Hooks::NONE
    };
    let trial = Trial::begin_with(agent!(), EVERY, hooks);
    let (first, second) = (trial.thread(), trial.thread());
    first.set_signal_stack(0x7000);
    trial.agent.on_thread_end(first);
    assert_eq!(GIVEN_BACK.load(Ordering::Relaxed), 0x7000);
    trial.agent.on_thread_end(second);
}

#[test]
fn a_thread_that_ends_after_a_jump_out_of_a_slow_path_is_muted_no_more() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let (slow_path, _) = thread.mute(40, &Caller::UNKNOWN);
    assert!(slow_path.leave_open());
    trial.agent.on_thread_end(thread);
    assert!(!thread.is_muted());
    assert_eq!(trial.ends().len(), 1);
}

#[test]
fn before_a_process_gives_up_its_rights_its_profile_exists() {
    let caller = Caller::UNKNOWN;
    let trial = Trial::begin(agent!(), SELDOM);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24);
    assert!(recording::current().is_none());
    trial.agent.before_confinement(thread, &caller);
    let recording = trial.recording();
    // There is no drain thread to be had in a test, which was asked for: this process has threads.
    assert_eq!(recording.drain_state(), DrainState::Failed);
    let is_it = |(note, _): &(Note, Vec<u8>)| *note == Note::NoDrainThread;
    assert!(trial.notes().iter().any(is_it));
    trial.agent.before_confinement(thread, &caller);
    assert!(core::ptr::eq(trial.recording(), recording));
    assert_eq!(trial.notes().iter().filter(|it| is_it(it)).count(), 1);
    drop(trial);
    // Not while it is off, nor within a slow path, nor in the child of a vfork, whose pid is another one.
    let trial = Trial::begin(agent!(), SELDOM);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24);
    trial.agent.switch.set(Switch::Off);
    trial.agent.before_confinement(thread, &caller);
    assert!(recording::current().is_none());
    trial.agent.switch.set(Switch::On);
    let (slow_path, _) = thread.mute(0, &caller);
    trial.agent.before_confinement(thread, &caller);
    assert!(recording::current().is_none());
    drop(slow_path);
    trial.agent.before_confinement(thread, &caller);
    assert!(recording::current().is_some());
}

#[test]
fn a_thread_that_exits_the_process_without_a_sample_is_announced() {
    let trial = Trial::begin(agent!(), SELDOM);
    let (first, second) = (trial.thread(), trial.thread());
    trial.alloc(first, 0x1000, 2 << 30).unwrap();
    trial.alloc(second, 0x2000, 24);
    assert!(trial.exit(second));
    assert_eq!(trial.starts(), [1, 2]);
}

#[test]
fn after_an_unshare_a_drain_thread_may_start_again_while_sampling_is_on() {
    let trial = Trial::begin(agent!(), EVERY);
    // Nothing to do, and no recording to do it for.
    trial.agent.after_unshare();
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let recording = trial.recording();
    recording.set_drain_state(DrainState::Done);
    trial.agent.switch.set(Switch::Off);
    trial.agent.after_unshare();
    assert_eq!(recording.drain_state(), DrainState::Done);
    trial.agent.switch.set(Switch::On);
    trial.agent.after_unshare();
    assert_eq!(recording.drain_state(), DrainState::None);
}

#[test]
fn the_end_of_another_thread_than_the_main_one_ends_nothing() {
    let trial = Trial::begin(agent!(), EVERY);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let agent = trial.agent;
    let ends_process = std::thread::spawn(|| {
        agent.on_pthread_exit();
        agent.on_raw_exit()
    });
    assert!(!ends_process.join().unwrap());
    assert!(!trial.recording().has_main_exited());
}

#[test]
fn threads_that_ended_before_the_recording_began_are_in_its_totals() {
    let trial = Trial::begin(agent!(), SELDOM);
    let (first, second, third) = (trial.thread(), trial.thread(), trial.thread());
    trial.alloc(first, 0x1000, 24);
    trial.alloc(second, 0x2000, 40);
    trial.agent.on_thread_end(first);
    trial.agent.on_thread_end(second);
    assert!(recording::current().is_none());
    trial.alloc(third, 0x3000, 2 << 30).unwrap();
    assert_eq!(trial.totals(), [(0, 64, 0)]);
}

#[test]
fn the_end_has_the_totals_of_all_threads_and_comes_once() {
    let trial = Trial::begin(agent!(), EVERY);
    let (first, second) = (trial.thread(), trial.thread());
    trial.alloc(first, 0x1000, 24).unwrap();
    trial.alloc(second, 0x2000, 30).unwrap();
    trial.alloc(second, 0x3000, 30).unwrap();
    assert!(trial.exit(first));
    assert_eq!(trial.agent.state(), Switch::Finished);
    let mut totals = trial.totals();
    totals.sort_unstable();
    assert_eq!(totals, [(1, 24, 0), (2, 60, 0)]);
    let exits = trial.of_kind(RecordKind::Exit);
    assert_eq!(exits.len(), 1);
    let exit = ExitRecord::decode(&exits[0]).unwrap();
    assert_eq!((exit.how, exit.status), (ExitHow::Exit, Some(0)));
    // The last record of all.
    assert_eq!(trial.records().last().unwrap().kind, RecordKind::Exit);
    assert!(!trial.exit(first));
    assert_eq!(trial.alloc(first, 0x4000, 24), None);
    assert_eq!(trial.of_kind(RecordKind::Exit).len(), 1);
    let figures = trial.recording().ring.figures();
    assert!(figures[Figure::ProcessNs as usize] > 0);
    assert!(figures[Figure::RingWords as usize] > 0);
    assert!(figures[Figure::MappedBytes as usize] > 0);
}

#[test]
fn the_thread_that_exits_may_have_taken_no_sample() {
    let trial = Trial::begin(agent!(), EVERY);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    assert!(trial.exit(trial.thread()));
    assert_eq!(trial.totals(), [(1, 24, 0)]);
}

#[test]
fn the_totals_of_threads_that_did_nothing_else_are_written_for_a_file() {
    let trial = Trial::begin(agent!(), EVERY);
    let (first, second) = (trial.thread(), trial.thread());
    trial.alloc(first, 0x1000, 24).unwrap();
    trial.alloc(second, 0x2000, 30).unwrap();
    trial.agent.write_totals(trial.recording());
    let mut totals = trial.totals();
    totals.sort_unstable();
    assert_eq!(totals, [(1, 24, 0), (2, 30, 0)]);
}

#[test]
fn a_process_without_samples_writes_a_profile_at_an_orderly_exit_only() {
    for (how, is_written) in [
        (ExitHow::Exit, true),
        (ExitHow::ImmediateExit, false),
        (ExitHow::Abort, false),
        (ExitHow::Detached, false),
    ] {
        let trial = Trial::begin(agent!(), SELDOM);
        let thread = trial.thread();
        trial.alloc(thread, 0x1000, 24);
        let caller = Caller::UNKNOWN;
        let is_told = trial.agent.on_exit(thread, &caller, how, Some(0), b"");
        assert_eq!(is_told, is_written, "{how:?}");
        assert_eq!(recording::current().is_some(), is_written, "{how:?}");
        // After a detach none is to begin.
        let is_over = is_written || how == ExitHow::Detached;
        assert_eq!(trial.agent.state() == Switch::Finished, is_over, "{how:?}");
    }
}

#[test]
fn of_the_children_of_run_only_the_first_writes_a_profile_without_samples() {
    let parent = std::string::ToString::to_string(&process::parent_pid());
    for (run_pid, is_written) in [(parent.as_str(), true), ("1234567", false)] {
        let settings = [("INTERVAL", "1G"), ("RUN_PID", run_pid)];
        let trial = Trial::begin(agent!(), &settings);
        let thread = trial.thread();
        trial.alloc(thread, 0x1000, 24);
        assert_eq!(trial.exit(thread), is_written);
    }
}

#[test]
fn an_exec_is_recorded_with_its_path_and_one_that_fails_begins_another_profile() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let caller = Caller::UNKNOWN;
    let path = b"/bin/true";
    assert!((trial.agent).on_exit(thread, &caller, ExitHow::Exec, None, path));
    let exec = trial.of_kind(RecordKind::Exec);
    let text: Vec<u8> = exec[0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let record = ExecRecord::decode(&exec[0], &text).unwrap();
    assert_eq!(record.path, path);
    let ended = trial.recording();
    trial.agent.after_exec_failed(thread);
    assert!(trial.agent.is_on());
    assert!(recording::current().is_none());
    // What lived is of the profile that has ended.
    assert_eq!(trial.agent.take_sampled(0x1000), 0);
    let again = trial.alloc(thread, 0x2000, 30).unwrap();
    assert!(!core::ptr::eq(trial.recording(), ended));
    let samples = trial.samples();
    assert_eq!((samples.len(), samples[0].id), (1, again.0));
    assert_eq!((samples[0].thread, samples[0].thread_bytes), (1, 30));
}

#[test]
fn a_fork_is_recorded_and_what_is_allocated_meanwhile_is_muted() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    let forking = trial.agent.before_fork(thread, &Caller::UNKNOWN);
    assert_eq!(forking, Forking::Muted);
    assert!(thread.is_muted());
    assert!(thread.charge(40));
    trial.agent.after_fork(thread, 77, forking);
    assert!(!thread.is_muted());
    assert_eq!(thread.totals().muted_bytes, 40);
    trial.alloc(thread, 0x2000, 30).unwrap();
    let forks = trial.of_kind(RecordKind::Fork);
    assert_eq!(forks.len(), 1);
    assert_eq!(ForkRecord::decode(&forks[0]).unwrap().child_pid, 77);
    // One that failed has no child.
    let forking = trial.agent.before_fork(thread, &Caller::UNKNOWN);
    trial.agent.after_fork(thread, -1, forking);
    assert!(!thread.is_muted());
    assert_eq!(trial.of_kind(RecordKind::Fork).len(), 1);
    assert_eq!(thread.totals().bytes, 54);
}

#[test]
fn a_child_has_a_profile_of_its_own_unless_children_are_ignored() {
    // As in a child: there is nobody else in this process who would notice.
    for (follow, is_on) in [("follow", true), ("ignore", false)] {
        let settings = [("INTERVAL", "1"), ("ON_FULL", "drop"), ("CHILDREN", follow)];
        let trial = Trial::begin(agent!(), &settings);
        let thread = trial.thread();
        trial.alloc(thread, 0x1000, 24).unwrap();
        let parents = trial.recording();
        let seed = trial.agent.seed().process;
        let forking = trial.agent.before_fork(thread, &Caller::UNKNOWN);
        trial.agent.after_fork(thread, 0, forking);
        assert_eq!(trial.agent.is_on(), is_on);
        assert!(recording::current().is_none());
        assert_ne!(trial.agent.seed().process, seed);
        assert_eq!(trial.agent.take_sampled(0x1000), 0);
        assert!(!thread.is_muted());
        let sampled = trial.alloc(thread, 0x2000, 30);
        assert_eq!(sampled.is_some(), is_on);
        if is_on {
            assert!(!core::ptr::eq(trial.recording(), parents));
            let sample = trial.samples()[0];
            assert_eq!((sample.thread, sample.thread_bytes), (1, 30));
            let notes = trial.notes();
            let parent = std::string::ToString::to_string(&process::pid()).into_bytes();
            assert!(notes.contains(&(Note::ForkedFrom, parent)), "{notes:?}");
        }
    }
}

#[test]
fn an_agent_without_memory_stops_with_a_note() {
    let trial = Trial::begin(agent!(), EVERY);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    trial.agent.fail_for_lack_of_memory();
    trial.agent.fail_for_lack_of_memory();
    assert_eq!(trial.agent.state(), Switch::Failed);
    assert_eq!(trial.alloc(thread, 0x2000, 24), None);
    let notes = trial.notes();
    let is_it = |(note, _): &&(Note, Vec<u8>)| *note == Note::SwitchedOff;
    assert_eq!(notes.iter().filter(is_it).count(), 1);
    // It has an end to tell all the same.
    assert!(trial.exit(thread));
    assert_eq!(trial.of_kind(RecordKind::Exit).len(), 1);
}

#[test]
fn losses_from_before_the_recording_are_counted_in_it() {
    let trial = Trial::begin(agent!(), EVERY);
    let publisher = trial.agent.publisher();
    publisher.count_lost(LostReason::NoMemory, 1, 70);
    publisher.count_lost(LostReason::FreeRingFull, 1, 0);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let lost = trial.recording().ring.lost();
    let bytes: u64 = lost.iter().map(|&(_, bytes)| bytes).sum();
    let events: u64 = lost.iter().map(|&(events, _)| events).sum();
    assert_eq!((events, bytes), (1, 70));
}

#[test]
fn a_snapshot_is_asked_for_where_there_is_a_profile() {
    let trial = Trial::begin(agent!(), EVERY);
    trial.agent.ask_for_snapshot();
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    assert!(!trial.recording().is_asked());
    trial.agent.ask_for_snapshot();
    let asked = trial.recording().take_asked();
    assert_eq!(asked, Some((allocsample_ring::request::SNAPSHOT, 0)));
    trial.agent.switch.set(Switch::Off);
    trial.agent.ask_for_snapshot();
    assert!(!trial.recording().is_asked());
}

#[test]
fn bridges_that_did_not_join_are_noted() {
    let hooks = Hooks {
        not_joined: |index, detail| {
            let why: &[u8] = match index {
                0 => b"lua: too old",
                1 => b"ruby: no symbol",
                _ => b"",
            };
            detail[..why.len()].copy_from_slice(why);
            why.len()
        },
        ..Hooks::NONE
    };
    let trial = Trial::begin_with(agent!(), EVERY, hooks);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let not_joined: Vec<Vec<u8>> = trial
        .notes()
        .into_iter()
        .filter(|(note, _)| *note == Note::NotJoined)
        .map(|(_, detail)| detail)
        .collect();
    assert_eq!(not_joined, [&b"lua: too old"[..], b"ruby: no symbol"]);
    drop(trial);
    let settings = [("INTERVAL", "1"), ("RUNTIME", "none")];
    let trial = Trial::begin(agent!(), &settings);
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let all = (Note::NotJoined, b"all: --runtime none".to_vec());
    assert!(trial.notes().contains(&all));
}

#[test]
fn a_bridge_that_declines_where_no_drain_thread_is_has_its_note_at_the_end() {
    static HAS_DECLINED: AtomicBool = AtomicBool::new(false);
    let hooks = Hooks {
        not_joined: |index, detail| {
            let why = b"embedded: too many";
            let has_declined = index == 0 && HAS_DECLINED.load(Ordering::Relaxed);
            detail[..why.len()].copy_from_slice(why);
            if has_declined { why.len() } else { 0 }
        },
        ..Hooks::NONE
    };
    let trial = Trial::begin_with(agent!(), EVERY, hooks);
    let thread = trial.thread();
    trial.alloc(thread, 0x1000, 24).unwrap();
    HAS_DECLINED.store(true, Ordering::Relaxed);
    let how = ExitHow::Exit;
    (trial.agent).on_exit(thread, &Caller::UNKNOWN, how, Some(0), b"");
    let note = (Note::NotJoined, b"embedded: too many".to_vec());
    let notes = trial.notes();
    assert_eq!(notes.iter().filter(|it| **it == note).count(), 1);
}

#[test]
fn a_new_profile_begins_with_the_process_the_interval_and_the_next_allocator() {
    let trial = Trial::begin(agent!(), &[("INTERVAL", "4096")]);
    trial.alloc(trial.thread(), 0x1000, 1 << 20).unwrap();
    let records = trial.records();
    let kinds: Vec<RecordKind> = records.iter().map(|record| record.kind).collect();
    use RecordKind::{Interval, Note as ANote, Process};
    assert_eq!(kinds[..3], [Process, Interval, ANote]);
    assert_eq!(trial.intervals(), [(0, 4096, 0)]);
    assert_eq!(
        trial.notes()[0],
        (Note::NextAllocator, b"libc.so.6".to_vec())
    );
    let words = &records[0].words;
    let text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let record = allocsample_record::ProcessRecord::decode(words, &text).unwrap();
    assert_eq!(
        (record.pid, record.parent_pid),
        (process::pid(), process::parent_pid())
    );
    let executable = std::env::current_exe().unwrap();
    assert_eq!(record.executable, executable.as_os_str().as_encoded_bytes());
    // The profile and the ring beside it.
    let mut names: Vec<_> = std::fs::read_dir(&trial.directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["app.allocsample", "app.allocsample.ring"]);
}

#[test]
fn a_name_that_is_taken_gets_a_number() {
    let trial = Trial::begin(agent!(), EVERY);
    std::fs::write(trial.directory.join("app.allocsample"), b"mine").unwrap();
    std::fs::write(trial.directory.join("app.1.allocsample.ring"), b"mine").unwrap();
    trial.alloc(trial.thread(), 0x1000, 24).unwrap();
    let path = trial.recording().path.as_bytes();
    assert!(path.ends_with(b"/app.2.allocsample"));
    assert!(!trial.directory.join("app.1.allocsample").exists());
    let kept = std::fs::read(trial.directory.join("app.allocsample")).unwrap();
    assert_eq!(kept, b"mine");
}
