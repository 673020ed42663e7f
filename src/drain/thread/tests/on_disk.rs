//! Rotation, snapshots, limits of size, and disks that are full.

use super::*;

#[test]
fn after_a_rotation_each_file_can_be_read_alone() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    let live = fill(&trial);
    trial
        .recording
        .ring
        .count_lost(LostReason::RingFull as usize, 3, 30);
    drain.drain_all().unwrap();
    let before = std::fs::read(trial.path()).unwrap();
    drain.rotate(true).unwrap();
    assert_eq!(
        trial.directory.names(),
        [
            "app.allocsample",
            "app.allocsample.index",
            "app.allocsample.ring",
            "app.part-1.allocsample"
        ]
    );
    // The file before has what it had, and its end.
    let part = trial.directory.path("app.part-1.allocsample");
    assert!(std::fs::read(&part).unwrap().starts_with(&before));
    let edge = |event: &Event, number, edge| match event {
        Event::Words { kind, words } if *kind == PartRecord::KIND as u8 => {
            let part = PartRecord::decode(words).unwrap();
            (part.number, part.edge) == (number, edge)
        }
        _ => false,
    };
    assert!(edge(events(&part).last().unwrap(), 1, PartEdge::End));
    let head = trial.recording.ring.head();
    let last_of_part = of_kind(&part, ChunkKind::Events);
    assert_eq!(last_of_part.last().unwrap().ring, head..head);

    // Shared frames go on from the stacks that were carried.
    let next = trial.sample(1, 2, &[70]);
    drain.drain_all().unwrap();
    let all = events(&trial.path());
    assert!(edge(&all[0], 2, PartEdge::Begin));
    let carried = SampleRecord {
        flags: SampleFlags::CARRIED,
        thread_bytes: 0,
        ..sample_of(2, 0)
    };
    let own = own_events(&trial);
    let is_sample = |event: &&Event| matches!(event, Event::Sample(_));
    let samples: Vec<&Event> = own.iter().filter(is_sample).collect();
    assert_eq!(samples.len(), 3);
    let of_id = |id| {
        let is_it = |event: &&&Event| matches!(event, Event::Sample(sample) if sample.id == id);
        (**samples.iter().find(is_it).unwrap()).clone()
    };
    let Event::Sample(of_live) = of_id(live) else {
        unreachable!()
    };
    assert_eq!(of_id(live), file_sample(live, &carried, of_live.stack.0));
    let Event::Sample(of_next) = of_id(next) else {
        unreachable!()
    };
    // Its stack has the two shared frames, both carried, and the new one.
    let nodes: Vec<StackNode> = own
        .iter()
        .filter_map(|event| match event {
            Event::Node(node) => Some(*node),
            _ => None,
        })
        .collect();
    let mut stack = Vec::new();
    let mut at = of_next.stack;
    while at != StackId::EMPTY {
        let node = nodes[at.0 as usize - 1];
        stack.push(node.location.offset);
        at = node.parent;
    }
    assert_eq!(stack, [70, 50, 30]);
    let last_stacks = own
        .iter()
        .filter(|event| is_of_kind(event, LastStackRecord::KIND))
        .count();
    assert_eq!(last_stacks, 2);

    let before = of_kind(&trial.path(), ChunkKind::LostBefore);
    assert_eq!(numbers(&before[0])[..2], [3, 30]);
    assert_eq!(before[0].ring.start, head);
    assert_eq!(of_kind(&trial.path(), ChunkKind::FiguresBefore).len(), 1);
    assert_eq!(of_kind(&trial.path(), ChunkKind::Lost).len(), 0);
    assert!(!drain.is_rotating);
}

#[test]
fn a_second_rotation_carries_what_the_first_one_carried() {
    let trial = Trial::begin(agent!(), &[("KEEP", "1")]);
    let mut drain = open(&trial);
    let live = fill(&trial);
    drain.rotate(true).unwrap();
    drain.rotate(true).unwrap();
    let has_it = |event: &Event| matches!(event, Event::Sample(sample) if sample.id == live);
    assert!(events(&trial.path()).iter().any(has_it));
    // Only one complete file is kept.
    assert_eq!(
        trial.directory.names(),
        [
            "app.allocsample",
            "app.allocsample.index",
            "app.allocsample.ring",
            "app.part-2.allocsample"
        ]
    );
    let written = drain.rotation.parts_bytes() + drain.writer.length();
    trial.sample(1, 0, &[]);
    drain.drain_all().unwrap();
    let figures = trial.recording.ring.figures();
    let now = figures[Figure::WrittenBytes as usize];
    assert_eq!(now, drain.rotation.parts_bytes() + drain.writer.length());
    assert!(now > written);
}

#[test]
fn a_reset_keeps_what_lives_and_no_file_of_before() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    let live = fill(&trial);
    drain.rotate(false).unwrap();
    assert_eq!(
        trial.directory.names(),
        [
            "app.allocsample",
            "app.allocsample.index",
            "app.allocsample.ring"
        ]
    );
    let has_it = |event: &Event| matches!(event, Event::Sample(sample) if sample.id == live);
    let events = events(&trial.path());
    let samples = events.iter().filter(|it| matches!(it, Event::Sample(_)));
    assert_eq!(samples.count(), 2);
    assert!(events.iter().any(has_it));
}

#[test]
fn a_ring_more_than_half_full_is_emptied_while_the_file_is_read() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    fill(&trial);
    drain.drain_all().unwrap();
    let ring = &trial.recording.ring;
    let half = ring.capacity_words() / 2;
    let fill_to = |words| {
        while ring.used_words() <= words {
            trial.sample(1, 0, &[10; 1000]);
        }
    };
    fill_to(half - 2000);
    let used_words = ring.used_words();
    drain.follow().unwrap();
    assert_eq!(ring.used_words(), used_words);
    fill_to(half);
    drain.follow().unwrap();
    assert_eq!(ring.used_words(), 0);
}

#[test]
fn a_reset_keeps_the_limit_of_the_file() {
    let trial = Trial::begin(agent!(), &[("MAX_SIZE", "1M")]);
    let mut drain = open(&trial);
    fill(&trial);
    drain.rotate(false).unwrap();
    let payload = vec![0; 1 << 20];
    let error = drain.writer.append_definitions(&payload, 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
}

#[test]
fn a_full_disk_is_told_once_and_not_waited_for_at_the_end() {
    use std::io::{Error, ErrorKind};
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    // Nobody obeys: this thread is the drain thread.
    assert!(!trial.recording.ask_drain(DrainRequest::Finish, 1));
    for kind in [
        ErrorKind::PermissionDenied,
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
    ] {
        let DrainError::Write(error) = drain.write(|_| Err(Error::from(kind))).unwrap_err();
        assert_eq!(error.kind(), kind);
        drain.drain_all().unwrap();
        let told = notes(&events(&trial.path()), Note::DiskFull);
        assert_eq!(told, usize::from(kind != ErrorKind::PermissionDenied));
    }
}

#[test]
fn a_rotation_that_fails_is_told_once_and_the_file_goes_on() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    // Nothing can be prepared there.
    std::fs::create_dir(trial.directory.path("app.allocsample.next")).unwrap();
    fill(&trial);
    drain.rotate(true).unwrap();
    drain.rotate(true).unwrap();
    let now_ns = clock::monotonic_ns();
    let head = trial.recording.ring.head();
    assert!(!drain.rotation.is_due(now_ns, u64::MAX, head));
    trial.sample(1, 0, &[]);
    drain.drain_all().unwrap();
    let events = events(&trial.path());
    assert_eq!(notes(&events, Note::NotRotated), 1);
    let samples = events.iter().filter(|it| matches!(it, Event::Sample(_)));
    assert_eq!(samples.count(), 4);
    // The end of a file is in none that goes on.
    assert!(!events.iter().any(|it| is_of_kind(it, RecordKind::Part)));
    assert_eq!(drain.rotation.number(), 1);
}

#[test]
fn a_file_that_could_not_get_its_second_name_goes_on_without_an_end() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    fill(&trial);
    drain.drain_all().unwrap();
    // Nothing to give a second name to.
    let aside = trial.directory.path("moved");
    std::fs::rename(trial.path(), &aside).unwrap();
    drain.rotate(true).unwrap();
    trial.sample(1, 0, &[]);
    drain.drain_all().unwrap();
    let events = events(&aside);
    assert!(!events.iter().any(|it| is_of_kind(it, RecordKind::Part)));
    assert_eq!(notes(&events, Note::NotRotated), 1);
    assert!(!drain.rotation.aside().exists());
}

#[test]
fn a_snapshot_is_a_copy_of_the_file_or_a_note() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    fill(&trial);
    trial.agent.ask_for_snapshot();
    drain.do_file_work().unwrap();
    drain.do_file_work().unwrap();
    let copy = trial.directory.path("app.snapshot-1.allocsample");
    let read = |path| std::fs::read(path).unwrap();
    assert_eq!(read(&copy), read(&trial.path()));
    assert_eq!(of_kind(&copy, ChunkKind::Figures).len(), 1);
    assert!(
        !trial
            .directory
            .names()
            .contains(&"app.snapshot-2.allocsample".to_owned())
    );

    std::fs::create_dir(trial.directory.path("app.allocsample.next")).unwrap();
    trial.agent.ask_for_snapshot();
    drain.do_file_work().unwrap();
    drain.drain_all().unwrap();
    assert_eq!(notes(&events(&trial.path()), Note::NoSnapshot), 1);
}

#[test]
fn a_file_is_rotated_when_it_is_long_enough_and_has_grown() {
    let trial = Trial::begin(agent!(), &[("ROTATE_SIZE", "64K")]);
    let mut drain = open(&trial);
    drain.do_file_work().unwrap();
    assert_eq!(drain.rotation.number(), 1);
    let mut address: u64 = 1;
    while drain.writer.length() < 64 << 10 {
        for _ in 0..1000 {
            address = address
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            trial.sample(1, 0, &[address]);
        }
        drain.drain_all().unwrap();
    }
    // Records that wait in the ring belong to the file before.
    trial.sample(1, 0, &[]);
    drain.do_file_work().unwrap();
    assert_eq!(drain.rotation.number(), 2);
    assert_eq!(trial.recording.ring.used_words(), 0);
    drain.do_file_work().unwrap();
    assert_eq!(drain.rotation.number(), 2);
}

#[test]
fn a_chunk_beyond_the_limit_costs_the_oldest_file() {
    let trial = Trial::begin(agent!(), &[]);
    let mut drain = open(&trial);
    fill(&trial);
    drain.rotate(true).unwrap();
    drain.rotate(true).unwrap();
    let oldest = trial.directory.path("app.part-1.allocsample");
    assert!(oldest.exists());
    drain.writer.set_most_bytes(Some(drain.writer.length()));
    trial.sample(1, 0, &[]);
    drain.drain_all().unwrap();
    assert!(!oldest.exists());
    assert!(trial.directory.path("app.part-2.allocsample").exists());
    drain.rotation.drop_oldest();
    drain.writer.set_most_bytes(Some(drain.writer.length()));
    trial.sample(1, 0, &[]);
    let DrainError::Write(error) = drain.drain_all().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
}

#[test]
fn only_a_limit_or_a_full_disk_costs_older_files() {
    use std::io::{Error, ErrorKind};
    let kinds = [
        (ErrorKind::FileTooLarge, true, false),
        (ErrorKind::QuotaExceeded, true, true),
        (ErrorKind::StorageFull, true, true),
        (ErrorKind::PermissionDenied, false, false),
    ];
    for (kind, is_for_want_of_room, is_disk_full) in kinds {
        let error = Error::from(kind);
        assert_eq!(files::is_for_want_of_room(&error), is_for_want_of_room);
        assert_eq!(files::is_disk_full(&error), is_disk_full);
    }
}

#[test]
fn all_files_together_stay_below_the_limit() {
    let settings = [("ROTATE_SIZE", "1M"), ("MAX_SIZE", "8M")];
    let trial = Trial::begin(agent!(), &settings);
    let mut drain = open(&trial);
    let mut word: u64 = 1;
    let mut most = 0;
    for _ in 0..20 {
        for _ in 0..16 {
            // Nothing that can be compressed, or that another file begins with.
            trial.put(RecordKind::Marker as u8, 4000, |words| {
                for place in words.iter_mut() {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *place = word;
                }
                Some(words.len())
            });
        }
        drain.drain_all().unwrap();
        drain.do_file_work().unwrap();
        let length = |name: &String| {
            let is_profile = name.ends_with(".allocsample");
            is_profile.then(|| std::fs::metadata(trial.directory.path(name)).unwrap().len())
        };
        let bytes: u64 = trial.directory.names().iter().filter_map(length).sum();
        most = bytes.max(most);
        assert!(bytes <= 8 << 20, "{bytes}");
    }
    assert!(most > 4 << 20, "{most}");
    assert!(drain.rotation.number() > 4, "{}", drain.rotation.number());
    assert!(!trial.directory.path("app.part-1.allocsample").exists());
}

#[test]
fn a_file_without_older_ones_begins_again_when_it_is_full() {
    let settings = [("ROTATE_EVERY", "1h"), ("MAX_SIZE", "8M")];
    let trial = Trial::begin(agent!(), &settings);
    let mut drain = open(&trial);
    let live = fill(&trial);
    drain.drain_all().unwrap();
    assert_eq!(drain.rotation.number(), 1);
    // There is just room for a chunk, and then for less.
    let full = (8 << 20) - CHUNK_WORDS * 8;
    let missing = full - drain.writer.length();
    std::fs::OpenOptions::new()
        .write(true)
        .open(trial.path())
        .unwrap()
        .set_len(drain.writer.length())
        .unwrap();
    let payload = vec![0; missing as usize - allocsample_record::CHUNK_HEADER_BYTES];
    let position = drain.consumer.position();
    drain.writer.append_definitions(&payload, position).unwrap();
    assert_eq!(drain.writer.length(), full);
    trial.sample(1, 0, &[]);
    drain.drain_all().unwrap();
    assert_eq!(drain.rotation.number(), 1);
    trial.sample(1, 0, &[]);
    drain.drain_all().unwrap();
    assert_eq!(drain.rotation.number(), 2);
    assert!(!trial.directory.path("app.part-1.allocsample").exists());
    let has_it = |event: &Event| matches!(event, Event::Sample(sample) if sample.id == live);
    assert!(events(&trial.path()).iter().any(has_it));
}

#[test]
fn a_profile_that_is_too_long_ends_sampling_and_says_so() {
    let trial = Trial::begin(agent!(), &[("MAX_SIZE", "1M")]);
    assert!(trial.agent.interval_in_force().is_some());
    std::fs::OpenOptions::new()
        .append(true)
        .open(trial.path())
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    trial.sample(1, 0, &[10]);
    trial.start();
    trial.recording.wait_for_drain_start();
    assert!(!trial.recording.ask_drain(DrainRequest::Finish, 10_000));
    assert_eq!(trial.recording.drain_state(), DrainState::Failed);
    assert_eq!(trial.agent.interval_in_force(), None);
    let (events, _) = trial.recording.ring.lost()[LostReason::WriteFailed as usize];
    assert_eq!(events, 1);
    // The ring stays for the reader.
    assert!(trial.directory.path("app.allocsample.ring").exists());
}
