//! The profile inside of the page: as JSON, and deflated where that is large.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::Value;

/// Less than this stays as it is, for people and scripts that look into the page.
const LEAST_BYTES: usize = 256 << 10;

/// What an element with the profile is marked with, and its text.
pub(crate) struct Embedded<'a> {
    data: &'a Value,
    is_packed: bool,
}

impl<'a> Embedded<'a> {
    pub fn of(data: &'a Value) -> io::Result<Self> {
        Self::of_at_least(data, LEAST_BYTES)
    }

    fn of_at_least(data: &'a Value, bytes: usize) -> io::Result<Self> {
        let mut counted = Counted(0);
        serde_json::to_writer(&mut counted, data)?;
        let is_packed = counted.0 >= bytes;
        Ok(Self { data, is_packed })
    }

    pub fn attribute(&self) -> &'static str {
        match self.is_packed {
            true => " data-packed=\"deflate\"",
            false => "",
        }
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.is_packed {
            return Ok(serde_json::to_writer(Escaped(out), self.data)?);
        }
        let mut text = EncoderWriter::new(out, &STANDARD);
        let mut packed = ZlibEncoder::new(&mut text, Compression::default());
        serde_json::to_writer(&mut packed, self.data)?;
        packed.finish()?;
        text.finish()?;
        Ok(())
    }
}

struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// For JSON in which no text can end the element that it is in: `<` only occurs inside of strings, where it may be escaped.
struct Escaped<'a>(&'a mut dyn Write);

impl Write for Escaped<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for (index, part) in bytes.split(|&byte| byte == b'<').enumerate() {
            if index > 0 {
                self.0.write_all(b"\\u003c")?;
            }
            self.0.write_all(part)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use flate2::read::ZlibDecoder;
    use serde_json::json;

    fn text(embedded: &Embedded<'_>) -> String {
        let mut out = Vec::new();
        embedded.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_large_profile_is_packed_and_a_small_one_is_not() {
        let data = json!({ "name": "</script>", "numbers": [1, 2, 3] });
        let length = serde_json::to_vec(&data).unwrap().len();
        let plain = Embedded::of_at_least(&data, length + 1).unwrap();
        assert_eq!(plain.attribute(), "");
        assert!(!text(&plain).contains('<'));
        assert_eq!(serde_json::from_str::<Value>(&text(&plain)).unwrap(), data);

        let packed = Embedded::of_at_least(&data, length).unwrap();
        assert!(packed.attribute().contains("packed"));
        let bytes = STANDARD.decode(text(&packed)).unwrap();
        let unpacked: Value = serde_json::from_reader(ZlibDecoder::new(&*bytes)).unwrap();
        assert_eq!(unpacked, data);
    }
}
