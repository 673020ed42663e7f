#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test may fail")]

use std::borrow::ToOwned;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::string::String;

use super::*;
use crate::path::PATH_BYTES;

/// A directory of its own, removed afterwards.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = std::format!("allocsample-beginning-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> std::vec::Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_str().unwrap().to_owned()
        };
        let mut names: std::vec::Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn writing_to(output: &std::path::Path) -> Config {
    let output = output.as_os_str().as_bytes();
    Config::read(
        |name| (name == "ALLOCSAMPLE_OUTPUT").then_some(output),
        b"/",
    )
    .unwrap()
}

#[test]
fn a_profile_and_its_ring_get_the_first_name_that_both_are_free_to_have() {
    let directory = Directory::new("names");
    let config = writing_to(&directory.0.join("app.allocsample"));
    let path = |config| {
        let files = create_files(config, b"app", 0).unwrap_or_else(|it| panic!("{}", it.reason));
        (
            files.path.as_bytes().to_vec(),
            ring_beside(&files.path).as_bytes().to_vec(),
        )
    };
    let (first, its_ring) = path(&config);
    assert_eq!(its_ring, [&first[..], b".ring"].concat());
    // The profile is somebody's, and then the ring alone.
    let (second, _) = path(&config);
    assert_ne!(first, second);
    let (third, third_ring) = path(&config);
    let third = std::ffi::OsStr::from_bytes(&third).to_owned();
    std::fs::remove_file(&third).unwrap();
    let (fourth, _) = path(&config);
    assert_ne!(fourth, third.as_bytes());
    assert!(
        !std::path::Path::new(&third).exists(),
        "what was begun is removed"
    );
    assert!(std::path::Path::new(std::ffi::OsStr::from_bytes(&third_ring)).exists());
    assert_eq!(directory.names().len(), 7);
}

/// A path that would be cut short names another file. The setting itself may not be so long, but names are put in.
#[test]
fn a_path_may_be_as_long_as_the_ring_s_still_fits() {
    let directory = Directory::new("length");
    let config = writing_to(&directory.0.join("%n.allocsample"));
    let around = directory.0.as_os_str().len() + "/.allocsample.ring".len();
    let room = PATH_BYTES - 1 - around;
    let folders = "d".repeat(99) + "/";
    let program = |bytes: usize| {
        let name = folders.repeat(room / folders.len() - 1);
        let rest = bytes - name.len();
        name + &"n".repeat(rest)
    };
    let deepest = directory.0.join(program(room)).parent().unwrap().to_owned();
    std::fs::create_dir_all(&deepest).unwrap();
    let create = |bytes| create_files(&config, program(bytes).as_bytes(), 0);
    let files = create(room).unwrap_or_else(|it| panic!("{}", it.reason));
    assert_eq!(ring_beside(&files.path).as_bytes().len(), PATH_BYTES - 1);
    for bytes in [room + 1, room + 5, room + 6] {
        let refused = create(bytes).err().map(|it| it.reason);
        assert_eq!(refused, Some("the output path is too long"), "{bytes}");
    }
    assert_eq!(std::fs::read_dir(&deepest).unwrap().count(), 2);
}

#[test]
fn the_largest_ring_that_the_limit_allows_is_made_and_an_equal_one_s_place_used_again() {
    let directory = Directory::new("ring");
    let create = |name: &str, place, limit_bytes| {
        let path = directory.0.join(name);
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        create_ring(&File::create_new(&path).unwrap(), 7, place, limit_bytes)
            .map(|(_, place)| place)
    };
    let sizes = CAPACITIES_WORDS.map(allocsample_ring::file_bytes);
    for (number, bytes) in sizes.into_iter().enumerate() {
        let made = create(&std::format!("a{number}"), None, bytes as u64).unwrap();
        assert_eq!(made.1, bytes);
        let smaller = create(&std::format!("b{number}"), None, bytes as u64 - 1);
        assert_eq!(smaller.map(|it| it.1), sizes.get(number + 1).copied());
        // The next one lies where the ended one lay, if it is as large.
        let again = create(&std::format!("c{number}"), Some(made), bytes as u64);
        assert_eq!(again, Some(made));
        let other = create(
            &std::format!("d{number}"),
            Some((made.0, bytes / 2)),
            bytes as u64,
        );
        assert_ne!(other.unwrap().0, made.0);
    }
}
