//! The first bytes of a profile.

/// Length of the file header.
pub const FILE_HEADER_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"ALLOCSMP";

/// Version of the file format. A reader takes any minor version of a major version that it knows: 3 and 4. (1 and 2 had
/// other packed records and stacks of frees.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatVersion {
    /// Changes when old readers would misread.
    pub major: u16,
    /// Changes when records are added that old readers can skip.
    pub minor: u16,
}

impl FormatVersion {
    /// The latest version that this build reads and writes: for a file that continues another one.
    pub const CURRENT: FormatVersion = FormatVersion { major: 4, minor: 0 };
    /// The oldest version that this build reads: for a file that begins with the recording.
    pub const WHOLE: FormatVersion = FormatVersion { major: 3, minor: 0 };
}

/// The header at the front of every profile.
///
/// ```text
/// 0..8 "ALLOCSMP" | 8..10 major | 10..12 minor | 12..16 reserved | 16..32 profile id | 32..60 reserved | 60..64 CRC-32 of 0..60
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Version of what follows.
    pub version: FormatVersion,
    /// Random; the ring file that belongs to this profile carries the same one.
    pub profile_id: u128,
}

/// Why a file cannot be read as a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// No bytes at all.
    Empty,
    /// Shorter than a header, but it begins like one.
    Truncated,
    /// Another kind of file.
    Foreign,
    /// Damaged header.
    BadChecksum,
    /// Written by a later version of allocsample.
    NewerVersion(FormatVersion),
    /// Written by an earlier version of allocsample, which this one cannot read.
    OlderVersion(FormatVersion),
}

impl FileHeader {
    /// The bytes of the header.
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.major.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.version.minor.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.profile_id.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header from the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.is_empty() {
            return Err(HeaderError::Empty);
        }
        let magic_seen = bytes.len().min(MAGIC.len());
        if bytes[..magic_seen] != MAGIC[..magic_seen] {
            return Err(HeaderError::Foreign);
        }
        let Some(header) = bytes.first_chunk::<FILE_HEADER_BYTES>() else {
            return Err(HeaderError::Truncated);
        };
        let version = FormatVersion {
            major: u16::from_le_bytes([header[8], header[9]]),
            minor: u16::from_le_bytes([header[10], header[11]]),
        };
        // Before the checksum: a later version may lay out the rest differently.
        if version.major > FormatVersion::CURRENT.major {
            return Err(HeaderError::NewerVersion(version));
        }
        if version.major < FormatVersion::WHOLE.major {
            return Err(HeaderError::OlderVersion(version));
        }
        let (body, crc) = header.split_at(60);
        if crc32fast::hash(body).to_le_bytes() != crc {
            return Err(HeaderError::BadChecksum);
        }
        let mut profile_id = [0; 16];
        profile_id.copy_from_slice(&header[16..32]);
        Ok(Self {
            version,
            profile_id: u128::from_le_bytes(profile_id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader {
        version: FormatVersion::CURRENT,
        profile_id: 0x0123_4567_89ab_cdef_u128 << 60,
    };

    #[test]
    fn round_trips() {
        assert_eq!(FileHeader::decode(&HEADER.encode()), Ok(HEADER));
    }

    #[test]
    fn each_kind_of_wrong_file_is_told_apart() {
        let good = HEADER.encode();
        assert_eq!(FileHeader::decode(&[]), Err(HeaderError::Empty));
        assert_eq!(FileHeader::decode(b"\x7fELF"), Err(HeaderError::Foreign));
        assert_eq!(FileHeader::decode(&good[..63]), Err(HeaderError::Truncated));
        let mut damaged = good;
        damaged[20] ^= 1;
        assert_eq!(FileHeader::decode(&damaged), Err(HeaderError::BadChecksum));
        let of = |major| {
            let version = FormatVersion { major, minor: 7 };
            let decoded = FileHeader::decode(&FileHeader { version, ..HEADER }.encode());
            (decoded.map(|header| header.version), version)
        };
        for major in [0, 1, 2] {
            let (decoded, version) = of(major);
            assert_eq!(decoded, Err(HeaderError::OlderVersion(version)));
        }
        for major in [3, 4] {
            let (decoded, version) = of(major);
            assert_eq!(decoded, Ok(version));
        }
        let (decoded, version) = of(5);
        assert_eq!(decoded, Err(HeaderError::NewerVersion(version)));
    }
}
