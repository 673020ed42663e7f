//! The files of one recording that went on in others: which they are, and how they become one.
//!
//! Each file begins with what it needs of those before ([`ChunkKind::Carried`]). Read behind them, it says nothing new
//! there: so files are joined by writing their chunks one after the other.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FILE_HEADER_BYTES, FileHeader, FormatVersion,
};

use crate::finish::{FinishError, Finished, complete_copy};
use crate::reader::{self, ReadError};
use crate::symbolize::root_of;

const SUFFIX: &[u8] = b".allocsample";
const PART: &[u8] = b".part-";

/// The files that were written before `path`, a profile, in the order of time; those that are still there.
pub fn parts_before(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let path = reader::profile_path(path);
    let own = identity(&path);
    let name = path.file_name().unwrap_or_default().as_bytes();
    let stem = name.strip_suffix(SUFFIX).unwrap_or(name);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let found = entry?.file_name();
        let Some(number) = number_in(found.as_bytes(), stem) else {
            continue;
        };
        let part = path.with_file_name(&found);
        // Of another recording of the same name, perhaps; or the present file itself, whose process was killed while it
        // had two names.
        let is_before = identity(&part).is_some_and(|part| {
            own.is_none_or(|own| part.profile_id == own.profile_id && part.inode != own.inode)
        });
        if is_before {
            parts.push((number, part));
        }
    }
    parts.sort();
    Ok(parts.into_iter().map(|(_, part)| part).collect())
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

#[derive(Clone, Copy)]
struct Identity {
    profile_id: u128,
    inode: (u64, u64),
}

fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_exact(&mut header).ok()?;
    Some(Identity {
        profile_id: FileHeader::decode(&header).ok()?.profile_id,
        inode: (metadata.dev(), metadata.ino()),
    })
}

/// Writes the files `parts` (in the order of time, of one recording) and the ring beside the last of them as one
/// profile, `to`, with names. The process may be running: it does not notice. `to` must not exist.
pub fn join(parts: &[PathBuf], to: &Path) -> Result<Finished, FinishError> {
    let Some(last) = parts.last() else {
        return Err(ReadError::Empty.into());
    };
    let ring = reader::ring_path(&reader::profile_path(last));
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
        let mut out = BufWriter::new(new);
        for (number, part) in parts.iter().enumerate() {
            append(&reader::profile_path(part), number == 0, &mut out)?;
        }
        out.flush()
    };
    write().map_err(FinishError::Write)?;
    complete_copy(to, root_of(last))
}

/// The whole chunks of a file, and its header before them if it is the first. Names are looked up anew, for all.
fn append(path: &Path, is_first: bool, out: &mut impl Write) -> std::io::Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    let mut header = [0; FILE_HEADER_BYTES];
    file.read_exact(&mut header)?;
    if is_first {
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
}
