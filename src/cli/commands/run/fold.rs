//! Keeps a run's directory tidy: one profile for the program, and one directory for the small ones of its children.
//!
//! A shell script or a launcher starts dozens of processes that allocate next to nothing. Their profiles move into a
//! directory beside the program's profile, which takes the name that the user asked for.

use std::path::{Path, PathBuf};

use allocsample_profile::Part;

use super::aftermath::Found;
use crate::output_file::{exchange, new_directory, rename_to_new};

/// The profile of a process that allocated less than this is small.
const ALWAYS_SMALL_BYTES: u64 = 1 << 20;
/// So is that of a process that allocated less than the program's own bytes divided by this.
const SMALL_SHARE: u64 = 100;

/// A process without samples that had less memory than this has nothing to show either.
const UNSAMPLED_SMALL_BYTES: u64 = 8 << 20;

/// The profiles that were moved.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Where they are.
    pub directory: PathBuf,
    /// How many.
    pub count: usize,
    /// What their processes allocated.
    pub allocated_bytes: u64,
}

/// Moves the small profiles out of the way, and gives the one at `main` the name that its run asked for if one of them had
/// it. Returns the index of the main profile in what is left. What cannot be moved stays where it is.
pub fn fold(found: &mut Vec<Found>, main: usize, asked_for: Option<&Path>) -> (usize, Folded) {
    let all: Vec<u64> = found.iter().map(Found::allocated_bytes).collect();
    let least = ALWAYS_SMALL_BYTES.max(all[main] / SMALL_SHARE);
    let is_small = |index: usize| {
        let is_other = index != main && !found[index].is_malloc_of(&found[main]);
        let has_little = found[index].unsampled_bytes() < UNSAMPLED_SMALL_BYTES;
        is_other && is_whole(&found[index]) && all[index] < least && has_little
    };
    let mut small: Vec<usize> = (0..found.len()).filter(|&index| is_small(index)).collect();
    if small.is_empty() {
        // A number in the name of a single profile has its reason, such as a file that is somebody else's.
        if found.iter().any(|it| Some(&*it.path) == asked_for) {
            give_name(found, main, asked_for);
        }
        return (main, Folded::default());
    }
    small.sort_by_key(|&index| found[index].profile.process.start_wall_ns);
    let name = asked_for.unwrap_or(&found[main].path);
    let Ok(directory) = new_directory(&name.with_extension("processes")) else {
        return (main, Folded::default());
    };
    let mut folded = Folded {
        directory,
        ..Folded::default()
    };
    let digits = small.len().to_string().len();
    let mut moved = Vec::new();
    for (place, &index) in (1..).zip(&small) {
        let process = &found[index].profile.process;
        let program = Path::new(&process.executable).file_name();
        let program = program.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let to = format!("{place:0digits$}.{program}.{}.allocsample", process.pid);
        if rename_to_new(&found[index].path, &folded.directory.join(to)).is_ok() {
            folded.count += 1;
            folded.allocated_bytes += all[index];
            moved.push(index);
        }
    }
    let main = main - moved.iter().filter(|&&index| index < main).count();
    let mut index = 0;
    found.retain(|_| {
        index += 1;
        !moved.contains(&(index - 1))
    });
    give_name(found, main, asked_for);
    (main, folded)
}

/// Gives the profile at `main` the name that its run asked for. Another process of the run that had it gets the other name.
fn give_name(found: &mut [Found], main: usize, asked_for: Option<&Path>) {
    let Some(asked_for) = asked_for.filter(|_| is_whole(&found[main])) else {
        return;
    };
    let path = found[main].path.clone();
    let before = found.iter().position(|it| it.path == asked_for);
    let is_done = match before {
        Some(before) if before == main => false,
        // The name of a Go program's heap says so.
        Some(before) if found[before].profile.sampled_by().is_some() => false,
        Some(before) => is_whole(&found[before]) && exchange(&path, asked_for).is_ok(),
        None => rename_to_new(&path, asked_for).is_ok(),
    };
    if is_done {
        found[main].path = asked_for.to_owned();
        if let Some(before) = before {
            found[before].path = path;
        }
    }
}

/// Whether a profile is that of a process which has ended, in one file. The parts of a rotated recording belong together by
/// their names, and a snapshot belongs to the one who asked for it.
fn is_whole(found: &Found) -> bool {
    let has_ended = !found.is_running && found.profile.exit.is_some();
    has_ended && found.profile.part == Part::default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use allocsample_profile::{Exit, ExitHow, Profile};

    use super::*;

    /// Profiles in a directory: the file, the pid, the bytes that the process allocated, and whether it runs.
    fn profiles(name: &str, all: &[(&str, u32, u64, bool)]) -> (PathBuf, Vec<Found>) {
        let directory =
            std::env::temp_dir().join(format!("allocsample-fold-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        let found = all.iter().map(|&(file, pid, bytes, is_running)| {
            let path = directory.join(file);
            fs::write(&path, pid.to_string()).unwrap();
            let mut profile = Profile::default();
            profile.process.pid = pid;
            profile.process.executable = "/bin/sh".to_owned();
            profile.process.start_wall_ns = u64::from(pid);
            let id = allocsample_profile::ThreadId(1);
            profile.exit = (!is_running).then_some(Exit {
                time_ns: 0,
                how: ExitHow::Exit,
                status: Some(0),
            });
            profile.threads.entry(id).or_default().exact_bytes = bytes;
            Found {
                path,
                profile,
                is_running,
            }
        });
        let found = found.collect();
        (directory, found)
    }

    fn files(directory: &Path) -> Vec<String> {
        let mut files: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        files
    }

    #[test]
    fn small_profiles_move_and_the_programs_gets_the_name_of_the_run() {
        let all = [
            ("a.allocsample", 7, 1000, false),
            ("a.1.allocsample", 9, 500 << 20, false),
            ("a.2.allocsample", 8, 2000, false),
            ("a.3.allocsample", 10, 20 << 20, false),
            ("a.4.allocsample", 11, 10, true),
        ];
        let (directory, mut found) = profiles("move", &all);
        let (main, folded) = fold(&mut found, 1, Some(&directory.join("a.allocsample")));
        assert_eq!((folded.count, folded.allocated_bytes), (2, 3000));
        assert_eq!(found[main].profile.process.pid, 9);
        assert_eq!(found.len(), 3);
        assert_eq!(
            fs::read_to_string(directory.join("a.allocsample")).unwrap(),
            "9"
        );
        let left = [
            "a.3.allocsample",
            "a.4.allocsample",
            "a.allocsample",
            "a.processes",
        ];
        assert_eq!(files(&directory), left);
        let moved = ["1.sh.7.allocsample", "2.sh.8.allocsample"];
        assert_eq!(files(&directory.join("a.processes")), moved);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_process_that_did_the_work_takes_the_name_from_the_program() {
        let all = [
            ("a.allocsample", 7, 5 << 20, false),
            ("a.1.allocsample", 9, 50 << 20, false),
        ];
        let (directory, mut found) = profiles("exchange", &all);
        let name = directory.join("a.allocsample");
        let (main, folded) = fold(&mut found, 1, Some(&name));
        assert_eq!((main, folded), (1, Folded::default()));
        assert_eq!(found[0].path, directory.join("a.1.allocsample"));
        for (found, pid) in found.iter().zip(["7", "9"]) {
            assert_eq!(fs::read_to_string(&found.path).unwrap(), pid);
        }
        // Not while the program still writes there.
        found[1].is_running = true;
        fold(&mut found, 0, Some(&name));
        assert_eq!(found[1].path, name);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn an_older_file_and_an_older_directory_are_kept() {
        let all = [
            ("a.1.allocsample", 7, 1000, false),
            ("a.2.allocsample", 9, 5 << 20, false),
        ];
        let (directory, mut found) = profiles("older", &all);
        fs::write(directory.join("a.allocsample"), "older").unwrap();
        fs::create_dir(directory.join("a.processes")).unwrap();
        let (main, folded) = fold(&mut found, 1, Some(&directory.join("a.allocsample")));
        assert_eq!(folded.directory, directory.join("a.processes.2"));
        assert_eq!(
            fs::read_to_string(directory.join("a.allocsample")).unwrap(),
            "older"
        );
        assert_eq!(found[main].path, directory.join("a.2.allocsample"));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_process_whose_allocator_was_not_sampled_stays_if_it_had_much_memory() {
        let all = [
            ("a.allocsample", 7, 50 << 20, false),
            ("a.1.allocsample", 8, 0, false),
            ("a.2.allocsample", 9, 0, false),
        ];
        let (directory, mut found) = profiles("unsampled", &all);
        for (index, mib) in [(1, 70), (2, 7)] {
            let mut reading = allocsample_profile::MemoryMap::default();
            reading.totals.anonymous_bytes = mib << 20;
            found[index].profile.memory.push(reading);
        }
        let (_, folded) = fold(&mut found, 0, Some(&directory.join("a.allocsample")));
        assert_eq!(folded.count, 1);
        let left = ["a.1.allocsample", "a.allocsample", "a.processes"];
        assert_eq!(files(&directory), left);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_single_profile_stays_where_it_is() {
        let (directory, mut found) = profiles("single", &[("a.allocsample", 7, 10, false)]);
        let (main, folded) = fold(&mut found, 0, Some(&directory.join("a.allocsample")));
        assert_eq!((main, folded), (0, Folded::default()));
        assert_eq!(files(&directory), ["a.allocsample"]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn parts_and_snapshots_stay_where_they_are() {
        let all = [
            ("a.allocsample", 7, 5 << 20, false),
            ("a.part-1.allocsample", 7, 10, false),
            ("a.part-2.allocsample", 7, 10, false),
            ("a.snapshot.allocsample", 7, 10, true),
        ];
        let (directory, mut found) = profiles("parts", &all);
        found[1].profile.part.is_continued = true;
        found[2].profile.part.before = 1;
        found[3].is_running = false;
        let (main, folded) = fold(&mut found, 0, Some(&directory.join("a.allocsample")));
        assert_eq!((main, found.len(), folded), (0, 4, Folded::default()));
        assert_eq!(files(&directory).len(), 4);
        fs::remove_dir_all(directory).unwrap();
    }
}
