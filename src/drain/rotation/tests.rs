use super::*;
use crate::trial::Directory;

const HOUR_NS: u64 = 3_600_000_000_000;
const BEGIN_NS: u64 = 5_000;

fn config(settings: &[(&str, &str)]) -> Config {
    let lookup = |name: &str| {
        let found = settings.iter().find(|(setting, _)| *setting == name)?;
        Some(found.1.as_bytes())
    };
    Config::read(lookup, b"/").unwrap()
}

fn rotation(settings: &[(&str, &str)], directory: &Directory) -> Rotation {
    let path = directory.path("app.allocsample");
    std::fs::write(&path, b"first").unwrap();
    Rotation::new(&config(settings), &path, BEGIN_NS, 70)
}

/// Goes on in another file of this content.
fn change(rotation: &mut Rotation, content: &[u8], bytes: u64, keeps: bool) {
    std::fs::write(rotation.aside(), content).unwrap();
    let border = Border {
        time_ns: rotation.begin_ns + 10,
        wall_ns: rotation.begin_wall_ns + 10,
        bytes,
    };
    let position = rotation.first_position + 100;
    rotation.change(&border, 3, position, keeps).unwrap();
}

#[test]
fn a_file_is_due_by_its_age() {
    let directory = Directory::new();
    let rotation = rotation(&[("ALLOCSAMPLE_ROTATE_EVERY", "1h")], &directory);
    assert!(!rotation.is_due(BEGIN_NS + HOUR_NS - 1, u64::MAX, 1));
    assert!(rotation.is_due(BEGIN_NS + HOUR_NS, 0, 1));
    // Without a record since it began there is nothing to go on with.
    assert!(!rotation.is_due(BEGIN_NS + HOUR_NS, u64::MAX, 0));
    assert!(!rotation.has_grown(0));
    assert!(rotation.has_grown(1));
}

#[test]
fn a_file_is_due_by_what_it_has_beyond_its_first_facts() {
    let directory = Directory::new();
    let mut rotation = rotation(&[("ALLOCSAMPLE_ROTATE_SIZE", "64K")], &directory);
    assert!(!rotation.is_due(u64::MAX, (64 << 10) - 1, 1));
    assert!(rotation.is_due(BEGIN_NS, 64 << 10, 1));
    change(&mut rotation, b"second", 5, true);
    assert!(!rotation.is_due(BEGIN_NS, (64 << 10) + 2, 101));
    assert!(rotation.is_due(BEGIN_NS, (64 << 10) + 3, 101));
    assert!(!rotation.is_due(BEGIN_NS, (64 << 10) + 3, 100));
}

#[test]
fn after_a_failure_it_is_tried_again_in_ten_seconds() {
    let directory = Directory::new();
    let mut rotation = rotation(&[("ALLOCSAMPLE_ROTATE_SIZE", "64K")], &directory);
    rotation.put_off(1_000);
    let again_ns = 10_000_001_000;
    assert!(!rotation.is_due(again_ns - 1, u64::MAX, 1));
    assert!(rotation.is_due(again_ns, u64::MAX, 1));
    change(&mut rotation, b"second", 5, true);
    assert!(rotation.is_due(0, u64::MAX, 1));
}

#[test]
fn the_thread_sleeps_until_the_next_file_is_due() {
    let directory = Directory::new();
    let by_age = [("ALLOCSAMPLE_ROTATE_EVERY", "1h")];
    let mut rotation = rotation(&by_age, &directory);
    assert_eq!(rotation.patience_ms(BEGIN_NS), Some(3_600_000));
    assert_eq!(rotation.patience_ms(BEGIN_NS + 1), Some(3_600_000));
    assert_eq!(rotation.patience_ms(BEGIN_NS + 1_000_000), Some(3_599_999));
    let due_ns = BEGIN_NS + HOUR_NS;
    assert_eq!(rotation.patience_ms(due_ns - 200_000_000), Some(200));
    assert_eq!(rotation.patience_ms(due_ns), Some(100));
    rotation.put_off(due_ns);
    assert_eq!(rotation.patience_ms(due_ns), Some(10_000));
    let never = Rotation::new(&config(&[]), Path::new("/x"), 0, 0);
    assert_eq!(never.patience_ms(0), None);
}

#[test]
fn complete_files_are_numbered_and_listed_and_the_oldest_goes() {
    let directory = Directory::new();
    let mut rotation = rotation(&[("ALLOCSAMPLE_KEEP", "2")], &directory);
    for (content, bytes) in [("second", 10), ("third", 20), ("fourth", 40)] {
        change(&mut rotation, content.as_bytes(), bytes, true);
    }
    assert_eq!(rotation.number(), 4);
    assert_eq!(
        directory.names(),
        [
            "app.allocsample",
            "app.allocsample.index",
            "app.part-2.allocsample",
            "app.part-3.allocsample"
        ]
    );
    let read = |name| std::fs::read_to_string(directory.path(name)).unwrap();
    assert_eq!(read("app.allocsample"), "fourth");
    assert_eq!(read("app.part-2.allocsample"), "second");
    assert_eq!(
        read("app.allocsample.index"),
        "#number\tbegin_unix_ns\tend_unix_ns\tbytes\tfile\n\
         2\t80\t90\t20\tapp.part-2.allocsample\n\
         3\t90\t100\t40\tapp.part-3.allocsample\n\
         4\t100\t-\t-\tapp.allocsample\n"
    );
    assert_eq!(rotation.parts_bytes(), 60);
    assert_eq!(rotation.room(), None);
    assert!(rotation.drop_oldest());
    assert!(rotation.drop_oldest());
    assert!(!rotation.drop_oldest());
    assert_eq!(directory.names().len(), 2);
}

#[test]
fn the_complete_files_take_their_room_from_the_current_one() {
    let directory = Directory::new();
    let settings = [
        ("ALLOCSAMPLE_MAX_SIZE", "8M"),
        ("ALLOCSAMPLE_ROTATE_EVERY", "1h"),
    ];
    let mut rotation = rotation(&settings, &directory);
    assert_eq!(rotation.room(), Some(8 << 20));
    change(&mut rotation, b"second", 3 << 20, true);
    assert_eq!(rotation.room(), Some(5 << 20));
    change(&mut rotation, b"third", 6 << 20, true);
    assert_eq!(rotation.room(), Some(0));
    assert_eq!(rotation.parts_bytes(), 9 << 20);
    change(&mut rotation, b"fourth", 1 << 20, false);
    assert_eq!(rotation.parts_bytes(), 9 << 20);
}

#[test]
fn the_file_of_somebody_else_is_not_replaced() {
    let directory = Directory::new();
    let mut rotation = rotation(&[], &directory);
    std::fs::write(directory.path("app.part-1.allocsample"), b"other").unwrap();
    change(&mut rotation, b"second", 5, true);
    let read = |name| std::fs::read(directory.path(name)).unwrap();
    assert_eq!(read("app.part-1.allocsample"), b"other");
    assert_eq!(read("app.part-1-1.allocsample"), b"first");
    assert_eq!(read("app.allocsample"), b"second");
}

/// Directories have no hard links, as all files on some file systems.
#[test]
fn without_hard_links_the_file_is_renamed() {
    let directory = Directory::new();
    let mut rotation = rotation(&[], &directory);
    let path = directory.path("app.allocsample");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    change(&mut rotation, b"second", 5, true);
    assert!(directory.path("app.part-1.allocsample").is_dir());
    assert_eq!(std::fs::read(&path).unwrap(), b"second");
}

#[test]
fn a_change_that_fails_leaves_the_file_under_its_name_alone() {
    let directory = Directory::new();
    let mut rotation = rotation(&[], &directory);
    let border = Border {
        time_ns: 1,
        wall_ns: 1,
        bytes: 5,
    };
    // There is no next file.
    assert!(rotation.change(&border, 3, 100, true).is_err());
    assert_eq!(directory.names(), ["app.allocsample"]);
    assert_eq!((rotation.number(), rotation.parts_bytes()), (1, 0));
    assert!(rotation.change(&border, 3, 100, false).is_err());
    assert_eq!(directory.names(), ["app.allocsample"]);
}

#[test]
fn copies_get_the_first_number_that_is_free() {
    let directory = Directory::new();
    let rotation = rotation(&[], &directory);
    assert_eq!(
        rotation.copy_path(),
        directory.path("app.snapshot-1.allocsample")
    );
    std::fs::write(rotation.copy_path(), b"").unwrap();
    assert_eq!(
        rotation.copy_path(),
        directory.path("app.snapshot-2.allocsample")
    );
}

#[test]
fn names_keep_the_suffix_that_they_have() {
    let named_beside = |path: &str| beside(Path::new(path), b".part-1");
    let with = named_beside("/a/app.allocsample");
    assert_eq!(with, Path::new("/a/app.part-1.allocsample"));
    assert_eq!(named_beside("/a/app"), Path::new("/a/app.part-1"));
    let aside = named(Path::new("/a/app"), b".next");
    assert_eq!(aside, Path::new("/a/app.next"));
}
