//! Which of a run's profiles its summary is about.
//!
//! It is the program's own, unless another process did the work: a shell, a wrapper or a launcher allocates next to nothing itself.

use std::path::Path;

use allocsample_profile::{ExitHow, Part};

use super::aftermath::Found;

/// A process that allocated, or without samples had, so many times what the program did, and at least so much, did the work.
const CLEARLY_MORE: u64 = 2;
const LEAST_BYTES: u64 = 1 << 20;

/// The index of the profile; `pid` is the program's.
pub fn subject(found: &[Found], pid: u32) -> Option<usize> {
    let Some(own) = of_program(found, pid) else {
        return (0..found.len()).max_by_key(|&index| found[index].work_bytes());
    };
    let others = (0..found.len()).filter(|&index| index != own && is_other(found, index, own));
    let work = |index: usize| {
        let is_complete = found[index].profile.exit.is_some();
        (found[index].work_bytes(), is_complete)
    };
    let largest = others.max_by_key(|&index| work(index));
    let own_bytes = found[own].work_bytes();
    let least = LEAST_BYTES.max(own_bytes.saturating_mul(CLEARLY_MORE));
    Some(match largest {
        Some(largest) if work(largest).0 >= least => largest,
        _ => own,
    })
}

/// The profile of the program itself, after its last exec.
fn of_program(found: &[Found], pid: u32) -> Option<usize> {
    let of_program = (0..found.len()).filter(|&index| found[index].profile.process.pid == pid);
    of_program.max_by_key(|&index| {
        let profile = &found[index].profile;
        let is_last = profile
            .exit
            .as_ref()
            .is_none_or(|it| it.how != ExitHow::Exec);
        // The heap of the language before the blocks of malloc.
        (
            is_last,
            profile.sampled_by().is_some(),
            profile.process.end_ns,
        )
    })
}

/// Whether a profile is that of another program than the one at `own`, as a whole: no snapshot of it, no part of its
/// recording, and not its blocks of malloc.
fn is_other(found: &[Found], index: usize, own: usize) -> bool {
    let it = &found[index].profile;
    let is_own_process = it.process.pid == found[own].profile.process.pid;
    let has_execed = (it.exit.as_ref()).is_some_and(|exit| exit.how == ExitHow::Exec);
    it.part == Part::default()
        && (!is_own_process || has_execed)
        && !found[index].is_malloc_of(&found[own])
}

/// The first line of the summary: whose profile is where. `has_own`: whether the program itself has one.
pub fn headline(subject: &Found, pid: u32, has_own: bool, path: &str) -> String {
    let process = &subject.profile.process;
    if process.pid == pid {
        format!("the profile is {path}")
    } else if has_own {
        let program = Path::new(&process.executable).file_name();
        let program = program.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        format!(
            "{program} (pid {}) allocated most, not the program itself; its profile is {path}",
            process.pid
        )
    } else {
        format!("the program itself took no sample; the largest profile of its children is {path}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::{Exit, Profile, ThreadId};
    use std::path::PathBuf;

    const MIB: u64 = 1 << 20;

    fn found(pid: u32, end_ns: u64, allocated_bytes: u64, how: ExitHow) -> Found {
        let mut profile = Profile::default();
        profile.process.pid = pid;
        profile.process.end_ns = end_ns;
        profile.process.executable = "/usr/bin/worker".to_owned();
        profile.exit = Some(Exit {
            time_ns: end_ns,
            how,
            status: Some(0),
        });
        let thread = profile.threads.entry(ThreadId(1)).or_default();
        thread.exact_bytes = allocated_bytes;
        Found {
            path: PathBuf::new(),
            profile,
            is_running: false,
        }
    }

    fn ended(pid: u32, end_ns: u64, allocated_bytes: u64) -> Found {
        found(pid, end_ns, allocated_bytes, ExitHow::Exit)
    }

    #[test]
    fn it_is_the_programs_own_last_profile_where_no_other_process_allocated_clearly_more() {
        let all = [
            ended(8, 90, 30 * MIB),
            ended(7, 10, 0),
            ended(7, 20, 16 * MIB),
            ended(9, 99, MIB),
        ];
        assert_eq!(subject(&all, 7), Some(2));
        // Nobody did any work here.
        let all = [ended(7, 10, 10), ended(8, 9, 1000)];
        assert_eq!(subject(&all, 7), Some(0));
        assert_eq!(subject(&[], 7), None);
    }

    #[test]
    fn it_is_the_process_that_did_the_work_wherever_it_is_in_the_run() {
        for place in 0..4 {
            let mut all = vec![ended(7, 99, 5000), ended(8, 10, 7000), ended(10, 98, MIB)];
            all.insert(place.min(3), ended(9, 50, 200 * MIB));
            assert_eq!(subject(&all, 7), Some(place.min(3)));
        }
        // Of a program that took no sample.
        let all = [ended(8, 10, 7000), ended(9, 50, 9000), ended(10, 98, 100)];
        assert_eq!(subject(&all, 7), Some(1));
    }

    #[test]
    fn work_before_an_exec_counts_as_that_of_a_child_does() {
        let all = [
            found(7, 10, 50 * MIB, ExitHow::Exec),
            ended(7, 20, 30 * MIB),
        ];
        assert_eq!(subject(&all, 7), Some(1));
        let all = [found(7, 10, 50 * MIB, ExitHow::Exec), ended(7, 20, MIB)];
        assert_eq!(subject(&all, 7), Some(0));
    }

    /// As rustup's wrapper and rustc, which has its own jemalloc.
    #[test]
    fn a_process_whose_allocator_is_not_sampled_is_compared_by_its_memory() {
        let unsampled = |pid, end_ns, anonymous_bytes| {
            let mut found = ended(pid, end_ns, 0);
            let mut reading = allocsample_profile::MemoryMap::default();
            reading.totals.anonymous_bytes = anonymous_bytes;
            found.profile.memory.push(reading);
            found
        };
        let wrapper = || found(7, 10, 4 * MIB, ExitHow::Exec);
        assert_eq!(
            subject(&[wrapper(), unsampled(7, 20, 73 * MIB)], 7),
            Some(1)
        );
        assert_eq!(subject(&[wrapper(), unsampled(7, 20, MIB)], 7), Some(0));
        let shell = ended(6, 30, 1000);
        let all = [shell, wrapper(), unsampled(7, 20, 73 * MIB)];
        assert_eq!(subject(&all, 6), Some(2));
    }

    #[test]
    fn a_part_or_a_snapshot_is_not_another_program() {
        let mut part = found(7, 10, 50 * MIB, ExitHow::Exec);
        part.profile.part.is_continued = true;
        let mut snapshot = ended(7, 10, 50 * MIB);
        snapshot.profile.exit = None;
        let all = [part, snapshot, ended(7, 20, MIB)];
        assert_eq!(subject(&all, 7), Some(2));
    }

    #[test]
    fn a_childs_profile_is_not_passed_off_as_the_programs() {
        let line = |pid, has_own| headline(&ended(pid, 0, 0), 7, has_own, "x.allocsample");
        assert_eq!(line(7, true), "the profile is x.allocsample");
        assert_eq!(
            line(8, true),
            "worker (pid 8) allocated most, not the program itself; its profile is x.allocsample"
        );
        assert!(line(8, false).contains("took no sample; the largest profile of its children"));
    }
}
