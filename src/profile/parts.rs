//! The files of one recording that went on in others: which they are.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use allocsample_record::{FILE_HEADER_BYTES, FileHeader};

use crate::reader;

pub(crate) const SUFFIX: &[u8] = b".allocsample";
const PART: &[u8] = b".part-";

/// How often the files are looked for again when the recording went on in another one meanwhile. That takes it more than
/// a look takes us.
const LOOKS: usize = 1000;

/// The files of a recording, as they were at one moment: none is missing between two of them, though the recording may go
/// on in another one at any time.
pub(crate) struct Files {
    /// Those that are complete, in the order of time. One that cannot be found when it is opened was deleted meanwhile,
    /// after those before it: there is a gap then, unless all are looked for again.
    pub(crate) before: Vec<PathBuf>,
    /// The last of them.
    pub(crate) last: File,
}

impl Files {
    /// Of the profile `path` (not a ring's path).
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        for _ in 0..LOOKS {
            let last = File::open(path)?;
            let mut before = match complete_files(path, &last) {
                Err(error) if is_not_found(&error) => continue,
                files => files?,
            };
            // It may have got its second name since, and others after it.
            let own = inode(&last.metadata()?);
            if let Some(index) = before.iter().position(|it| it.inode == own) {
                before.truncate(index);
            } else if inode(&std::fs::metadata(path)?) != own {
                continue;
            }
            return Ok(Self {
                before: before.into_iter().map(|it| it.path).collect(),
                last,
            });
        }
        Err(std::io::Error::other(
            "the recording goes on in another file again and again",
        ))
    }
}

/// What `read` makes of [`Files`] that it opens: again if one of them was deleted before it was opened, which `is_gone`
/// knows by the error.
pub(crate) fn read_whole<T, E>(
    path: &Path,
    is_gone: impl Fn(&E) -> bool,
    mut read: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    for _ in 1..LOOKS {
        match read() {
            Err(error) if is_gone(&error) && path.exists() => {}
            result => return result,
        }
    }
    read()
}

/// Whether a file was not there.
pub(crate) fn is_not_found(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// The files that were written before `path`, a profile, in the order of time; those that are still there.
pub fn parts_before(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    Ok(Files::open(&reader::profile_path(path))?.before)
}

/// A file of the same recording as `last` that is complete.
struct CompleteFile {
    path: PathBuf,
    inode: (u64, u64),
}

/// Those beside `path`, in the order of time; `last` is among them if it has got its second name.
fn complete_files(path: &Path, last: &File) -> std::io::Result<Vec<CompleteFile>> {
    let own = profile_id(last);
    let name = path.file_name().unwrap_or_default().as_bytes();
    let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let found = entry?.file_name();
        let Some(number) = number_in(found.as_bytes(), stem) else {
            continue;
        };
        let path = path.with_file_name(&found);
        let file = match File::open(&path) {
            Err(error) if is_not_found(&error) && path.symlink_metadata().is_err() => {
                return Err(error);
            }
            // Nothing that can be read, or a link to nothing.
            Err(_) => continue,
            Ok(file) => file,
        };
        // Of another recording of the same name, perhaps.
        let id = profile_id(&file);
        if id.is_none() || own.is_some() && own != id {
            continue;
        }
        let inode = inode(&file.metadata()?);
        files.push((number, CompleteFile { path, inode }));
    }
    files.sort_by_key(|&(number, _)| number);
    Ok(files.into_iter().map(|(_, file)| file).collect())
}

fn profile_id(file: &File) -> Option<u128> {
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_exact_at(&mut header, 0).ok()?;
    Some(FileHeader::decode(&header).ok()?.profile_id)
}

pub(crate) fn inode(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The number in `STEM.part-N.allocsample`, or in `STEM.part-N-M.allocsample` where a name was taken.
fn number_in(name: &[u8], stem: &[u8]) -> Option<(u32, u32)> {
    let rest = name.strip_prefix(stem)?.strip_prefix(PART)?;
    let rest = std::str::from_utf8(rest.strip_suffix(SUFFIX).unwrap_or(rest)).ok()?;
    match rest.split_once('-') {
        Some((number, attempt)) => Some((number.parse().ok()?, attempt.parse().ok()?)),
        None => Some((rest.parse().ok()?, 0)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use allocsample_record::FormatVersion;

    #[test]
    fn numbers_are_read_from_names() {
        for (name, number) in [
            ("app.part-1.allocsample", Some((1, 0))),
            ("app.part-12-3.allocsample", Some((12, 3))),
            ("app.part-x.allocsample", None),
            ("app.allocsample", None),
            ("app2.part-1.allocsample", None),
            ("app.part-1.allocsample.ring", None),
        ] {
            assert_eq!(number_in(name.as_bytes(), b"app"), number, "{name}");
        }
    }

    #[test]
    fn what_is_no_file_of_the_recording_is_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("app.allocsample");
        let part = |number| path.with_file_name(format!("app.part-{number}.allocsample"));
        write_numbered(&path, 9);
        write_numbered(&part(2), 2);
        std::os::unix::fs::symlink("nowhere", part(3)).expect("a link");
        std::fs::write(part(4), "something else").expect("a file");
        std::fs::create_dir(part(5)).expect("a directory");
        assert_eq!(parts_before(&path).expect("files"), [part(2)]);
    }

    /// A file that says which one it is.
    fn write_numbered(path: &Path, number: usize) {
        let header = FileHeader {
            version: FormatVersion::CURRENT,
            profile_id: 7,
        };
        let bytes = [&header.encode()[..], number.to_string().as_bytes()].concat();
        std::fs::write(path, bytes).expect("a file");
    }

    fn read_number(mut file: &File) -> usize {
        let mut text = String::new();
        file.read_exact(&mut [0; FILE_HEADER_BYTES]).expect("whole");
        file.read_to_string(&mut text).expect("text");
        text.parse().expect("a number")
    }

    #[test]
    fn none_is_missing_while_the_recording_goes_on_in_others() {
        const CHANGES: usize = 2000;
        // So many stay.
        const KEPT: usize = 10;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("app.allocsample");
        let part = |number| path.with_file_name(format!("app.part-{number}.allocsample"));
        write_numbered(&path, 1);
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let mut looks = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let aside = path.with_file_name("app.next.allocsample");
                for number in 1..CHANGES {
                    // As the drain thread does it.
                    write_numbered(&aside, number + 1);
                    std::fs::hard_link(&path, part(number)).expect("a second name");
                    std::fs::rename(&aside, &path).expect("another file");
                    if number > KEPT {
                        std::fs::remove_file(part(number - KEPT)).expect("deleted");
                    }
                }
                is_over.store(true, std::sync::atomic::Ordering::Release);
            });
            while !is_over.load(std::sync::atomic::Ordering::Acquire) || looks == 0 {
                let read = || {
                    let files = Files::open(&path)?;
                    let mut numbers = (files.before.iter())
                        .map(|path| Ok(read_number(&File::open(path)?)))
                        .collect::<std::io::Result<Vec<_>>>()?;
                    numbers.push(read_number(&files.last));
                    Ok(numbers)
                };
                let numbers = read_whole(&path, is_not_found, read).expect("files");
                let first = numbers[0];
                let expected: Vec<usize> = (first..first + numbers.len()).collect();
                assert_eq!(numbers, expected);
                looks += 1;
            }
        });
        let files = Files::open(&path).expect("files");
        assert_eq!(read_number(&files.last), CHANGES);
        assert_eq!(files.before.len(), KEPT);
        assert!(looks > 10, "{looks}");
    }
}
