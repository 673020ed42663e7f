//! Several files of one recording, read as one profile.
//!
//! A snapshot holds all that was recorded before it, from the beginning of its part of the recording: of several
//! snapshots of one part the latest has what is in the others. Parts follow each other. So of each part the latest file
//! is read, one part behind the other.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use allocsample_record::{
    CHUNK_HEADER_BYTES, ChunkDecoder, ChunkHeader, ChunkKind, Event, PartRecord, RecordKind,
};

use crate::model::Profile;
use crate::reader::{self, ReadError};
use crate::{chunks, parts};

/// Why files are no series.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeriesError {
    /// One cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: ReadError,
    },
    /// They tell of different processes, or of different recordings of one.
    #[error("{} and {} are not of one recording: ask for each by itself", one.display(), other.display())]
    Strangers {
        /// One.
        one: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// One begins before the one that it was given behind has ended.
    #[error("{}: begins before the end of the file that is given before it: give each part of the recording once, in the order of time", path.display())]
    Order {
        /// Which.
        path: PathBuf,
    },
    /// Something is missing between two of them.
    #[error("part {part} of the recording is missing before {}: what was freed in it would look alive", path.display())]
    Gap {
        /// The file behind it.
        path: PathBuf,
        /// Its number.
        part: u32,
    },
}

/// What a file holds of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    path: PathBuf,
    inode: (u64, u64),
    profile_id: u128,
    /// Numbers of its first part and of its last, from 1.
    from: u32,
    to: u32,
    /// Position in the ring behind its last record.
    ring_to: u64,
}

impl Profile {
    /// Reads files of one recording as one profile: parts of it, or snapshots that were taken one after the other, in
    /// any order. The ring beside the last of them is read too. `read_bytes` as in [`Profile::open_watched`].
    pub fn open_series(paths: &[PathBuf], read_bytes: &AtomicU64) -> Result<Profile, SeriesError> {
        loop {
            let members = paths
                .iter()
                .map(|path| {
                    let path = reader::profile_path(path);
                    Member::of(&path).map_err(|error| SeriesError::Read { path, error })
                })
                .collect::<Result<Vec<_>, _>>()?;
            let mut files = needed(members)?;
            let Some(last) = files.pop() else {
                let (path, error) = (PathBuf::new(), ReadError::Empty);
                return Err(SeriesError::Read { path, error });
            };
            let failed = |error| SeriesError::Read {
                path: last.path.clone(),
                error,
            };
            let ring = reader::read_ring_of(&last.path);
            let file = File::open(&last.path).map_err(|error| failed(error.into()))?;
            let metadata = file.metadata().map_err(|error| failed(error.into()))?;
            if parts::inode(&metadata) != last.inode {
                // The recording went on in another file since this one was looked at.
                continue;
            }
            let before = files.iter().map(|file| File::open(&file.path));
            let files = before.chain([Ok(file)]);
            return reader::read_files(files, &last.path, ring, read_bytes)
                .map(|(profile, _)| profile)
                .map_err(failed);
        }
    }
}

/// The files that have to be read, in the order of time.
fn needed(mut members: Vec<Member>) -> Result<Vec<Member>, SeriesError> {
    for pair in members.windows(2) {
        if pair[0].profile_id != pair[1].profile_id {
            let [one, other] = [&pair[0], &pair[1]].map(|member| member.path.clone());
            return Err(SeriesError::Strangers { one, other });
        }
    }
    // Of those that begin together the one that goes on longest comes first.
    members.sort_by(|one, other| {
        (one.from, other.to, other.ring_to).cmp(&(other.from, one.to, one.ring_to))
    });
    let mut files = Vec::new();
    let mut read_to = None;
    for member in members {
        match read_to {
            Some(to) if member.to <= to => continue,
            Some(to) if member.from != to + 1 => {
                return Err(SeriesError::Gap {
                    path: member.path,
                    part: to + 1,
                });
            }
            _ => {}
        }
        read_to = Some(member.to);
        files.push(member);
    }
    Ok(files)
}

/// Whether each of these files is of the recording of the one before it, and begins where that has ended or later.
pub(crate) fn check_order(paths: &[PathBuf]) -> Result<(), SeriesError> {
    let mut before: Option<Member> = None;
    for path in paths {
        let member = Member::of(path).map_err(|error| SeriesError::Read {
            path: path.clone(),
            error,
        })?;
        match before {
            Some(before) if before.profile_id != member.profile_id => {
                return Err(SeriesError::Strangers {
                    one: before.path,
                    other: member.path,
                });
            }
            Some(before) if member.from <= before.to => {
                return Err(SeriesError::Order { path: member.path });
            }
            _ => before = Some(member),
        }
    }
    Ok(())
}

impl Member {
    fn of(path: &Path) -> Result<Self, ReadError> {
        let (file, chunks) = reader::behind_header(File::open(path)?)?;
        let inode = parts::inode(&file.metadata()?);
        let mut file = BufReader::new(file);
        let mut member = Self {
            path: path.to_owned(),
            inode,
            profile_id: chunks.profile_id,
            from: 0,
            to: 1,
            ring_to: 0,
        };
        let mut head = Vec::new();
        loop {
            head.clear();
            let length = CHUNK_HEADER_BYTES as u64;
            file.by_ref().take(length).read_to_end(&mut head)?;
            // What is wrong with the rest is found out when it is read.
            let Some(header) = ChunkHeader::decode(&head) else {
                member.from = member.from.max(1);
                return Ok(member);
            };
            member.ring_to = member.ring_to.max(header.ring_to);
            if header.kind == ChunkKind::Carried as u16 {
                let mut payload = Vec::new();
                let length = u64::from(header.stored_bytes);
                file.by_ref().take(length).read_to_end(&mut payload)?;
                if let Some(number) = part_number(&header, &payload) {
                    member.to = member.to.max(number);
                    member.from = if member.from == 0 {
                        number
                    } else {
                        member.from
                    };
                }
            } else {
                if header.kind == ChunkKind::Events as u16 && member.from == 0 {
                    member.from = 1;
                }
                file.seek(SeekFrom::Current(i64::from(header.stored_bytes)))?;
            }
        }
    }
}

/// The part that begins with this chunk.
fn part_number(header: &ChunkHeader, payload: &[u8]) -> Option<u32> {
    let raw = chunks::unpack(header, payload)?;
    let is_node = |event: &Event| matches!(event, Event::Node(_));
    match ChunkDecoder::new(&raw, 0).find(|event| !is_node(event))? {
        Event::Words { kind, words } if kind == RecordKind::Part as u8 => {
            PartRecord::decode(&words).map(|part| part.number)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(path: &str, from: u32, to: u32, ring_to: u64) -> Member {
        Member {
            path: path.into(),
            inode: (0, 0),
            profile_id: 7,
            from,
            to,
            ring_to,
        }
    }

    fn names(members: &[Member]) -> Result<Vec<String>, SeriesError> {
        let files = needed(members.to_vec())?;
        Ok(files
            .iter()
            .map(|file| file.path.display().to_string())
            .collect())
    }

    #[test]
    fn of_each_part_the_latest_file_is_read() {
        let (early, late) = (member("early", 1, 1, 10), member("late", 1, 1, 90));
        let (next, whole) = (member("next", 2, 2, 200), member("whole", 1, 2, 200));
        let last = member("last", 3, 3, 300);
        let all = [last.clone(), late.clone(), early.clone(), next.clone()];
        assert_eq!(names(&all).unwrap(), ["late", "next", "last"]);
        assert_eq!(names(&[early.clone(), early.clone()]).unwrap(), ["early"]);
        let joined = [next.clone(), whole, late.clone(), last.clone()];
        assert_eq!(names(&joined).unwrap(), ["whole", "last"]);
        // The first ones may be gone.
        assert_eq!(names(&[last.clone(), next]).unwrap(), ["next", "last"]);
        let error = names(&[late.clone(), last]).unwrap_err().to_string();
        assert!(
            error.starts_with("part 2 of the recording is missing before last"),
            "{error}"
        );
        let stranger = Member {
            profile_id: 8,
            ..late.clone()
        };
        assert!(matches!(
            names(&[late, stranger]),
            Err(SeriesError::Strangers { .. })
        ));
    }
}
