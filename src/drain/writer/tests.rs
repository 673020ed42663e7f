use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::trial::{Directory, chunks, numbers};

fn open(path: &Path, most_bytes: Option<u64>) -> std::io::Result<ChunkWriter> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    ChunkWriter::open(&path, most_bytes)
}

const HEADER: FileHeader = FileHeader {
    version: FormatVersion::WHOLE,
    profile_id: 77,
};

fn file(directory: &Directory, most_bytes: Option<u64>) -> ChunkWriter {
    let path = directory.path("profile");
    std::fs::write(&path, HEADER.encode()).unwrap();
    open(&path, most_bytes).unwrap()
}

#[test]
fn each_chunk_says_what_it_is_and_which_words_of_the_ring_it_stands_for() {
    let directory = Directory::new();
    let mut writer = file(&directory, None);
    let raw = [7; 5000];
    writer.append_events(&raw, 10..30).unwrap();
    writer.append_carried(&raw[..20], 30).unwrap();
    writer.append_definitions(b"names", 31).unwrap();
    let lost = [(1, 2), (3, 4)];
    writer
        .append_lost(ChunkKind::LostBefore, &lost, 32)
        .unwrap();
    writer
        .append_figures(ChunkKind::Figures, &[5, 6], 33)
        .unwrap();
    writer.append_memory(&raw[..30], 34).unwrap();
    let path = directory.path("profile");
    assert_eq!(writer.length(), std::fs::metadata(&path).unwrap().len());
    let chunks = chunks(&path);
    let heads: Vec<_> = chunks.iter().map(|it| (it.kind, it.ring.clone())).collect();
    assert_eq!(
        heads,
        [
            (ChunkKind::Events as u16, 10..30),
            (ChunkKind::Carried as u16, 30..30),
            (ChunkKind::Definitions as u16, 31..31),
            (ChunkKind::LostBefore as u16, 32..32),
            (ChunkKind::Figures as u16, 33..33),
            (ChunkKind::Memory as u16, 34..34),
        ]
    );
    assert_eq!(chunks[0].payload, raw);
    assert_eq!(chunks[1].payload, raw[..20]);
    assert_eq!(chunks[2].payload, b"names");
    assert_eq!(numbers(&chunks[3]), [1, 2, 3, 4]);
    assert_eq!(numbers(&chunks[4]), [5, 6]);
    assert_eq!(chunks[5].payload, raw[..30]);
}

#[test]
fn a_chunk_that_fits_exactly_is_written_and_a_longer_one_is_not() {
    let directory = Directory::new();
    let most_bytes = FILE_HEADER_BYTES + CHUNK_HEADER_BYTES + 5;
    let mut writer = file(&directory, Some(most_bytes as u64));
    let error = writer.append_definitions(b"123456", 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
    assert_eq!(writer.length(), FILE_HEADER_BYTES as u64);
    writer.append_definitions(b"12345", 0).unwrap();
    assert_eq!(writer.length(), most_bytes as u64);
    assert_eq!(chunks(&directory.path("profile")).len(), 1);
    writer.set_most_bytes(None);
    writer.append_definitions(b"123456", 0).unwrap();
    writer.set_most_bytes(Some(0));
    assert!(writer.append_definitions(b"", 0).is_err());
}

#[test]
fn the_next_file_has_the_same_id_and_the_rights_of_this_one() {
    let directory = Directory::new();
    let writer = file(&directory, Some(100));
    let (path, next_path) = (directory.path("profile"), directory.path("next"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::write(&next_path, b"left by a killed process").unwrap();
    let mut next = writer.create_next(&next_path).unwrap();
    let metadata = std::fs::metadata(&next_path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o640);
    let bytes = std::fs::read(&next_path).unwrap();
    let header = FileHeader::decode(&bytes).unwrap();
    assert_eq!(
        (header.profile_id, header.version),
        (77, FormatVersion::CURRENT)
    );
    assert_eq!(next.length(), bytes.len() as u64);
    // The limit of this one is not that of the next.
    next.append_definitions(&[0; 1000], 0).unwrap();
    next.cut(FILE_HEADER_BYTES as u64).unwrap();
    assert_eq!(std::fs::read(&next_path).unwrap(), bytes);
    next.append_definitions(b"later", 0).unwrap();
    assert_eq!(chunks(&next_path).len(), 1);
}

#[test]
fn a_copy_is_whole_or_absent() {
    let directory = Directory::new();
    let mut writer = file(&directory, None);
    let bytes: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
    writer.append_definitions(&bytes, 0).unwrap();
    let (aside, path) = (directory.path("aside"), directory.path("copy"));
    std::fs::write(&aside, b"left by a killed process").unwrap();
    let rights = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(directory.path("profile"), rights).unwrap();
    writer.copy(&aside, &path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    let original = std::fs::read(directory.path("profile")).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), original);
    assert!(!aside.exists());
    // The target is a directory: the copy cannot get its name.
    let taken = directory.path("taken");
    std::fs::create_dir(&taken).unwrap();
    assert!(writer.copy(&aside, &taken).is_err());
    assert!(!aside.exists());
}

#[test]
fn a_link_is_not_followed() {
    let directory = Directory::new();
    drop(file(&directory, None));
    let link = directory.path("link");
    std::os::unix::fs::symlink(directory.path("profile"), &link).unwrap();
    assert!(open(&link, None).is_err());
}

#[test]
fn only_a_disk_that_fails_or_is_full_makes_a_sync_fail() {
    let of = |number| synced(Err(std::io::Error::from_raw_os_error(number)));
    for number in [libc::EIO, libc::ENOSPC, libc::EDQUOT] {
        assert_eq!(of(number).unwrap_err().raw_os_error(), Some(number));
    }
    assert!(of(libc::EINVAL).is_ok());
    assert!(of(libc::EPERM).is_ok());
    assert!(synced(Ok(())).is_ok());
}

#[test]
fn what_does_not_fit_is_not_compressed() {
    let raw = [7; 100];
    let mut to = [0; 200];
    let length = compress(&raw, &mut to).unwrap();
    assert!(length < 20);
    let back = lz4_flex::block::decompress(&to[..length], 100).unwrap();
    assert_eq!(back, raw);
    assert_eq!(compress(&raw, &mut to[..3]), None);
}
