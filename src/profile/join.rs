//! How the files of a recording that went on in others become one.
//!
//! Each file begins with what it needs of those before ([`ChunkKind::Carried`]). Read behind them, it says nothing new
//! there: so files are joined by writing their chunks one after the other.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use allocsample_record::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkKind, FileHeader, FormatVersion};

use crate::finish::{FinishError, Finished, complete_copy, copy_ring};
use crate::new_file;
use crate::parts::{self, Files};
use crate::reader::{self, ReadError, behind_header};
use crate::series::{SeriesError, check_order};
use crate::symbolize::root_of;

/// Why files could not be joined; they are as they were.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// One cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: ReadError,
    },
    /// They cannot become one.
    #[error(transparent)]
    Series(#[from] SeriesError),
    /// The one that they become cannot be written.
    #[error("cannot be written: {0}")]
    Write(#[source] io::Error),
}

impl JoinError {
    fn is_not_found(&self) -> bool {
        matches!(self, Self::Read { error, .. } if error.is_not_found())
    }
}

/// What came of reading the file `path`.
fn reading<T, E: Into<ReadError>>(path: &Path, result: Result<T, E>) -> Result<T, JoinError> {
    result.map_err(|error| JoinError::Read {
        path: path.to_owned(),
        error: error.into(),
    })
}

/// What came of finishing a copy, which has the content of the file `path`.
fn finishing<T>(path: &Path, result: Result<T, FinishError>) -> Result<T, JoinError> {
    match result {
        Ok(value) => Ok(value),
        Err(FinishError::Read(error)) => reading(path, Err(error)),
        Err(FinishError::Write(error)) => Err(JoinError::Write(error)),
    }
}

/// Writes the files `parts` (in the order of time, of one recording) and the ring beside the last of them as one
/// profile, `to`, with names. The process may be running: it does not notice. `to` must not exist.
pub fn join(parts: &[PathBuf], to: &Path) -> Result<Finished, JoinError> {
    let parts: Vec<_> = parts
        .iter()
        .map(|part| reader::profile_path(part))
        .collect();
    let Some(last) = parts.last() else {
        return reading(Path::new(""), Err(ReadError::Empty));
    };
    check_order(&parts)?;
    join_with(last, to, |joined| {
        parts.iter().try_for_each(|part| joined.append(part))
    })
}

/// As [`join`], with all files of the recording that `path` is the last one of; and how many they were.
pub fn join_recording(path: &Path, to: &Path) -> Result<(Finished, usize), JoinError> {
    let path = reader::profile_path(path);
    let mut count = 0;
    let finished = join_with(&path, to, |joined| {
        parts::read_whole(&path, JoinError::is_not_found, || {
            joined.begin_anew().map_err(JoinError::Write)?;
            let files = reading(&path, Files::open(&path))?;
            count = files.before.len() + 1;
            for part in &files.before {
                joined.append(part)?;
            }
            joined.append_open(files.last, &path)
        })
    })?;
    Ok((finished, count))
}

fn join_with(
    last: &Path,
    to: &Path,
    append_all: impl FnOnce(&mut Joined) -> Result<(), JoinError>,
) -> Result<Finished, JoinError> {
    // First: what moves into a file meanwhile is in both then.
    finishing(&reader::ring_path(last), copy_ring(last, to))?;
    let mut joined = Joined::create(to).map_err(JoinError::Write)?;
    append_all(&mut joined)?;
    joined.out.flush().map_err(JoinError::Write)?;
    finishing(last, complete_copy(to, root_of(last)))
}

/// A profile that is made of others.
struct Joined {
    out: BufWriter<File>,
    has_header: bool,
}

impl Joined {
    fn create(path: &Path) -> io::Result<Self> {
        // Nobody else's, as the parts are.
        Ok(Self {
            out: BufWriter::new(new_file::create(path)?),
            has_header: false,
        })
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        self.has_header = false;
        self.out.rewind()?;
        self.out.get_ref().set_len(0)
    }

    fn append(&mut self, path: &Path) -> Result<(), JoinError> {
        self.append_open(reading(path, File::open(path))?, path)
    }

    /// The whole chunks of `file`, and its header before them if it is the first. Names are looked up anew, for all.
    fn append_open(&mut self, file: File, path: &Path) -> Result<(), JoinError> {
        let (file, chunks) = reading(path, behind_header(file))?;
        if !std::mem::replace(&mut self.has_header, true) {
            let header = FileHeader {
                version: FormatVersion::CURRENT,
                profile_id: chunks.profile_id,
            };
            self.out
                .write_all(&header.encode())
                .map_err(JoinError::Write)?;
        }
        let mut file = BufReader::new(file);
        let mut chunk = Vec::new();
        loop {
            match reading(path, next_chunk(&mut file, &mut chunk))? {
                None => return Ok(()),
                Some(ChunkHeader { kind, .. }) if kind == ChunkKind::Symbols as u16 => {}
                Some(_) => self.out.write_all(&chunk).map_err(JoinError::Write)?,
            }
        }
    }
}

/// Reads the next chunk with its header into `chunk`; nothing if it is not whole.
fn next_chunk(file: &mut impl Read, chunk: &mut Vec<u8>) -> io::Result<Option<ChunkHeader>> {
    chunk.clear();
    let length = CHUNK_HEADER_BYTES as u64;
    file.by_ref().take(length).read_to_end(chunk)?;
    let Some(header) = ChunkHeader::decode(chunk) else {
        return Ok(None);
    };
    let length = u64::from(header.stored_bytes);
    file.by_ref().take(length).read_to_end(chunk)?;
    let payload = chunk.get(CHUNK_HEADER_BYTES..).unwrap_or(&[]);
    Ok(header.matches(payload).then_some(header))
}

/// The name of a file that is made of several: `app.allocsample` gives `app.joined.allocsample`.
pub fn joined_name(path: &Path) -> PathBuf {
    let path = path.as_os_str().as_bytes();
    let stem = path.strip_suffix(parts::SUFFIX).unwrap_or(path);
    PathBuf::from(OsString::from_vec(
        [stem, b".joined", parts::SUFFIX].concat(),
    ))
}
