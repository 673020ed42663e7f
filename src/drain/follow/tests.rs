use std::os::unix::ffi::OsStrExt;

use allocsample_record::{
    Event, FileHeader, FileSample, FormatVersion, HeapId, SampleFlags, SampleId, StackId, ThreadId,
};

use super::*;
use crate::trial::Directory;

/// A file that begins with a header, and the directory that it is in.
fn file() -> (Directory, ChunkWriter) {
    let directory = Directory::new();
    let path = directory.path("profile");
    let header = FileHeader {
        version: FormatVersion::CURRENT,
        profile_id: 5,
    };
    std::fs::write(&path, header.encode()).unwrap();
    (directory, open(&path))
}

fn open(path: &std::path::Path) -> ChunkWriter {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    ChunkWriter::open(&path, None).unwrap()
}

fn chunk(kind: ChunkKind, payload: &[u8]) -> Vec<u8> {
    let header = ChunkHeader::for_payload(kind, payload.len() as u32, 0..0, &[payload]);
    [&header.encode()[..], payload].concat()
}

/// What becomes of a file with these bytes after its header.
fn follow(bytes: &[u8]) -> Result<Follower, String> {
    let (directory, _) = file();
    let path = directory.path("profile");
    let before = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&before[..], bytes].concat()).unwrap();
    let (file, mut follower) = (open(&path), Follower::default());
    while follower.step(&file).map_err(|error| error.to_string())? {}
    Ok(follower)
}

fn sample(id: u64) -> FileSample {
    FileSample {
        id: SampleId(id),
        time_ns: 1,
        address: 2,
        size: 3,
        thread: ThreadId(1),
        heap: HeapId::MALLOC,
        flags: SampleFlags::default(),
        points: 1,
        interval: 0,
        thread_bytes: 3,
        stack: StackId::EMPTY,
    }
}

fn events(ids: &[u64]) -> Vec<u8> {
    let mut encoder = allocsample_record::ChunkEncoder::new(0);
    ids.iter().for_each(|&id| encoder.sample(&sample(id)));
    encoder.take()
}

/// The ids of the samples that are live.
fn live(carry: &Carry) -> Vec<u64> {
    let part = allocsample_record::PartRecord {
        time_ns: 0,
        wall_ns: 0,
        number: 2,
        edge: allocsample_record::PartEdge::Begin,
    };
    let mut ids = Vec::new();
    let mut encoder = allocsample_record::ChunkEncoder::new(0);
    let take = |encoder: &mut allocsample_record::ChunkEncoder| {
        let raw = encoder.take();
        ids.extend(ChunkDecoder::new(&raw, 0).filter_map(|event| match event {
            Event::Sample(sample) => Some(sample.id.0),
            _ => None,
        }));
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(_) = carry.write(&part, std::iter::empty(), &mut encoder, take);
    ids
}

#[test]
fn events_carried_facts_and_definitions_are_read_and_the_rest_is_stepped_over() {
    let (_directory, mut file) = file();
    let mut follower = Follower::default();
    assert!(!follower.step(&file).unwrap());
    file.append_carried(&events(&[4]), 0).unwrap();
    file.append_definitions(b"names", 0).unwrap();
    file.append_lost(ChunkKind::Lost, &[(1, 2)], 0).unwrap();
    file.append_figures(ChunkKind::Figures, &[1, 2], 0).unwrap();
    file.append_memory(b"map", 0).unwrap();
    file.append_events(&events(&[7]), 0..9).unwrap();
    for _ in 0..6 {
        assert!(follower.step(&file).unwrap());
    }
    assert!(!follower.step(&file).unwrap());
    assert_eq!(live(&follower.carry), [4, 7]);
    assert_eq!(follower.definitions, [b"names"]);
    // It goes on where it was.
    file.append_events(&events(&[9]), 9..18).unwrap();
    assert!(follower.step(&file).unwrap());
    assert!(!follower.step(&file).unwrap());
    assert_eq!(live(&follower.carry), [4, 7, 9]);
}

#[test]
fn a_damaged_file_is_not_continued() {
    let complaint = |bytes: &[u8]| follow(bytes).err().unwrap_or_default();
    let raw = events(&[1]);
    let mut packed = vec![0; 1000];
    let stored = crate::compress(&raw, &mut packed).unwrap();
    let header = ChunkHeader::for_payload(
        ChunkKind::Events,
        raw.len() as u32,
        0..9,
        &[&packed[..stored]],
    );
    let whole = [&header.encode()[..], &packed[..stored]].concat();
    assert_eq!(live(&follow(&whole).unwrap().carry), [1]);
    assert_eq!(complaint(&[0; CHUNK_HEADER_BYTES]), "not a chunk");
    let cut = &whole[..whole.len() - 1];
    assert_eq!(complaint(cut), "a chunk beyond the end");
    let mut flipped = whole.clone();
    flipped[CHUNK_HEADER_BYTES] ^= 1;
    assert_eq!(complaint(&flipped), "a bad checksum");
    let of_spill = chunk(ChunkKind::Packed, b"records");
    let expected = "the ring as it was: recording has ended before";
    assert_eq!(complaint(&of_spill), expected);
    // A sample that is cut short.
    let stored = crate::compress(&raw[..3], &mut packed).unwrap();
    let header = ChunkHeader::for_payload(ChunkKind::Events, 3, 0..9, &[&packed[..stored]]);
    let malformed = [&header.encode()[..], &packed[..stored]].concat();
    assert_eq!(complaint(&malformed), "a malformed event");
    // Chunks that are not read are not checked either: some are of later versions.
    let mut of_figures = chunk(ChunkKind::Figures, &[1; 8]);
    of_figures[CHUNK_HEADER_BYTES] ^= 1;
    assert_eq!(complaint(&of_figures), "");
}
