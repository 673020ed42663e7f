//! The files of one recording that went on in others: which they are, and how they become one.
//!
//! Each file begins with what it needs of those before ([`ChunkKind::Carried`]). Read behind them, it says nothing new
//! there: so files are joined by writing their chunks one after the other.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, FormatVersion,
};

use crate::finish::{FinishError, Finished, complete_copy};
use crate::reader::{self, ReadError};
use crate::symbolize::root_of;

const SUFFIX: &[u8] = b".allocsample";
const PART: &[u8] = b".part-";

/// How often the files are looked for again when the recording went on in another one meanwhile. That takes it more than
/// a look takes us.
const LOOKS: usize = 1000;

/// The files of a recording, as they were at one moment: none is missing between two of them, though the recording may go
/// on in another one at any time.
pub(crate) struct Files {
    /// Those that are complete, in the order of time. One that cannot be found when it is opened was deleted meanwhile,
    /// after those before it: there is a gap then, unless all are looked for again.
    before: Vec<PathBuf>,
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

    /// How many there are before the last one.
    pub(crate) fn count_before(&self) -> usize {
        self.before.len()
    }

    /// The `count` ones that were written last before the last one, or all that there are.
    pub(crate) fn open_before(
        &self,
        count: usize,
    ) -> impl Iterator<Item = std::io::Result<File>> + '_ {
        let first = self.before.len().saturating_sub(count);
        self.before[first..].iter().map(File::open)
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

/// Writes the files `parts` (in the order of time, of one recording) and the ring beside the last of them as one
/// profile, `to`, with names. The process may be running: it does not notice. `to` must not exist.
pub fn join(parts: &[PathBuf], to: &Path) -> Result<Finished, FinishError> {
    let Some((last, before)) = parts.split_last() else {
        return Err(ReadError::Empty.into());
    };
    let last = reader::profile_path(last);
    join_with(&last, to, |out| {
        for part in before {
            append(File::open(reader::profile_path(part))?, out)?;
        }
        append(File::open(&last)?, out)
    })
}

/// As [`join`], with all files of the recording that `path` is the last one of; and how many they were.
pub fn join_recording(path: &Path, to: &Path) -> Result<(Finished, usize), FinishError> {
    let path = reader::profile_path(path);
    let mut count = 0;
    let finished = join_with(&path, to, |out| {
        read_whole(&path, is_not_found, || {
            out.begin_anew()?;
            let files = Files::open(&path)?;
            count = files.count_before() + 1;
            for file in files.open_before(usize::MAX) {
                append(file?, out)?;
            }
            append(files.last, out)
        })
    })?;
    Ok((finished, count))
}

fn join_with(
    last: &Path,
    to: &Path,
    append_all: impl FnOnce(&mut Joined) -> std::io::Result<()>,
) -> Result<Finished, FinishError> {
    let ring = reader::ring_path(last);
    if ring.exists() {
        // First: what moves into a file meanwhile is in both then.
        std::fs::copy(&ring, reader::ring_path(to)).map_err(FinishError::Write)?;
    }
    let write = || -> std::io::Result<()> {
        // Nobody else's, as the parts are.
        let new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(to)?;
        let mut out = Joined {
            out: BufWriter::new(new),
            has_header: false,
        };
        append_all(&mut out)?;
        out.out.flush()
    };
    write().map_err(FinishError::Write)?;
    complete_copy(to, root_of(last))
}

/// A profile that is made of others.
struct Joined {
    out: BufWriter<File>,
    has_header: bool,
}

impl Joined {
    fn begin_anew(&mut self) -> std::io::Result<()> {
        self.has_header = false;
        self.out.rewind()?;
        self.out.get_ref().set_len(0)
    }
}

/// The whole chunks of a file, and its header before them if it is the first. Names are looked up anew, for all.
fn append(file: File, joined: &mut Joined) -> std::io::Result<()> {
    let out = &mut joined.out;
    let mut file = BufReader::new(file);
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_exact(&mut header)?;
    if !std::mem::replace(&mut joined.has_header, true) {
        let header = FileHeader::decode(&header)
            .map_err(|_| std::io::Error::other("not an allocsample profile"))?;
        let version = FormatVersion::CURRENT;
        out.write_all(&FileHeader { version, ..header }.encode())?;
    }
    let mut chunk = Vec::new();
    loop {
        chunk.clear();
        let length = CHUNK_HEADER_BYTES as u64;
        file.by_ref().take(length).read_to_end(&mut chunk)?;
        let Some(header) = ChunkHeader::decode(&chunk) else {
            return Ok(());
        };
        let length = u64::from(header.stored_bytes);
        file.by_ref().take(length).read_to_end(&mut chunk)?;
        if !header.matches(chunk.get(CHUNK_HEADER_BYTES..).unwrap_or(&[])) {
            return Ok(());
        }
        if header.kind != ChunkKind::Symbols as u16 {
            out.write_all(&chunk)?;
        }
    }
}

/// The name of a file that is made of several: `app.allocsample` gives `app.joined.allocsample`.
pub fn joined_name(path: &Path) -> PathBuf {
    let path = path.as_os_str().as_bytes();
    let stem = path.strip_suffix(SUFFIX).unwrap_or(path);
    PathBuf::from(OsString::from_vec([stem, b".joined", SUFFIX].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    let before = files.open_before(usize::MAX);
                    let mut numbers = before
                        .map(|file| Ok(read_number(&file?)))
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
        assert_eq!(files.count_before(), KEPT);
        assert!(looks > 10, "{looks}");
    }
}
