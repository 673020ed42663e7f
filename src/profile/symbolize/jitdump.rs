//! `jit-PID.dump`: what a JIT compiler tells of its code, with times. The format is that of Linux perf's
//! `jitdump-specification.txt`.

use std::sync::Arc;

use allocsample_record::{SymbolFrame, readable};

use super::generations::{Change, CodeChange};

const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const RECORD_HEADER_BYTES: usize = 16;
/// Times are those of a processor, which nobody can compare with ours.
const FLAG_PROCESSOR_TIME: u64 = 1;

const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_DEBUG_INFO: u32 = 2;

/// The changes that a file tells of, in its order, if it is one of the process `pid` in this machine's byte order. A file
/// that was cut short, because the process was killed, gives what is whole.
pub(super) fn parse(bytes: &[u8], pid: u32) -> Option<Vec<CodeChange>> {
    let mut header = Fields(bytes);
    let is_known = header.u32()? == MAGIC && header.u32()? == VERSION;
    let header_bytes = header.u32()? as usize;
    let (_machine, _padding, of_pid) = (header.u32()?, header.u32()?, header.u32()?);
    let (_time_ns, flags) = (header.u64()?, header.u64()?);
    if !is_known || of_pid != pid {
        return None;
    }
    let has_times = flags & FLAG_PROCESSOR_TIME == 0;
    let mut rest = bytes.get(header_bytes..)?;
    let mut changes = Vec::new();
    let mut lines = Lines::default();
    while let Some((kind, time_ns, body, after)) = record(rest) {
        rest = after;
        let time_ns = if has_times { time_ns } else { 0 };
        let change = match kind {
            CODE_LOAD => load(body, &mut lines),
            CODE_MOVE => moved(body),
            CODE_DEBUG_INFO => {
                lines = Lines::parse(body).unwrap_or_default();
                None
            }
            _ => None,
        };
        changes.extend(change.map(|change| CodeChange { time_ns, change }));
    }
    Some(changes)
}

/// Kind, time, body, and what comes after.
fn record(bytes: &[u8]) -> Option<(u32, u64, &[u8], &[u8])> {
    let mut header = Fields(bytes);
    let (kind, size, time_ns) = (header.u32()?, header.u32()? as usize, header.u64()?);
    let body = bytes.get(RECORD_HEADER_BYTES..size)?;
    Some((kind, time_ns, body, bytes.get(size..)?))
}

fn load(body: &[u8], lines: &mut Lines) -> Option<Change> {
    let mut fields = Fields(body);
    let (_pid, _tid, _virtual) = (fields.u32()?, fields.u32()?, fields.u64()?);
    let (start, size, _index) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let name = fields.text()?;
    // Lines stand before the code that they are about.
    let lines = std::mem::take(lines);
    let frames = if lines.address == start {
        lines.frames(&name)
    } else {
        vec![(start, frame(&name, None, 0))]
    };
    Some(Change::Add {
        start,
        end: start.checked_add(size)?,
        frames,
    })
}

fn moved(body: &[u8]) -> Option<Change> {
    let mut fields = Fields(body);
    let (_pid, _tid, _virtual) = (fields.u32()?, fields.u32()?, fields.u64()?);
    Some(Change::Move {
        from: fields.u64()?,
        to: fields.u64()?,
    })
}

fn frame(function: &Arc<str>, file: Option<&Arc<str>>, line: u32) -> SymbolFrame {
    SymbolFrame {
        function: Some(function.clone()),
        file: file.cloned(),
        line,
    }
}

/// Lines of the next code: where each begins, in the order of addresses.
#[derive(Default)]
struct Lines {
    address: u64,
    places: Vec<(u64, u32, Arc<str>)>,
}

impl Lines {
    fn parse(body: &[u8]) -> Option<Self> {
        /// Stands for the name of the entry before.
        const SAME: &[u8] = b"\xff";
        let mut fields = Fields(body);
        let (address, count) = (fields.u64()?, fields.u64()?);
        let mut places: Vec<(u64, u32, Arc<str>)> = Vec::new();
        for _ in 0..count {
            let (at, line, _discriminator) = (fields.u64()?, fields.u32()?, fields.u32()?);
            let name = fields.bytes_to_zero()?;
            let file = match places.last() {
                Some((.., file)) if name == SAME => file.clone(),
                _ => readable(name).into(),
            };
            places.push((at, line, file));
        }
        places.sort_by_key(|&(at, ..)| at);
        Some(Self { address, places })
    }

    fn frames(&self, name: &Arc<str>) -> Vec<(u64, SymbolFrame)> {
        let begin = (self.address, frame(name, None, 0));
        let places = self.places.iter();
        std::iter::once(begin)
            .chain(places.map(|(at, line, file)| (*at, frame(name, Some(file), *line))))
            .collect()
    }
}

/// Numbers in this machine's byte order: the file was written on it.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*bytes))
    }

    fn bytes_to_zero(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..)?;
        Some(text)
    }

    fn text(&mut self) -> Option<Arc<str>> {
        Some(readable(self.bytes_to_zero()?).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(function: &str, file: Option<&str>, line: u32) -> SymbolFrame {
        frame(&function.into(), file.map(Arc::from).as_ref(), line)
    }

    fn header(pid: u32, flags: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [MAGIC, VERSION, 40, 62, 0, pid] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(5u64.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes
    }

    fn with_record(mut bytes: Vec<u8>, kind: u32, time_ns: u64, body: &[u8]) -> Vec<u8> {
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(((RECORD_HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        bytes.extend(time_ns.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn load_of(start: u64, size: u64, name: &[u8]) -> Vec<u8> {
        [&words(&[0, start, start, size, 1]), name, b"\0code"].concat()
    }

    fn example() -> Vec<u8> {
        let line = |at: u64, line: u32, file: &[u8]| {
            [&words(&[at, u64::from(line)]), file, b"\0"].concat()
        };
        let lines = [
            words(&[100, 2]),
            line(104, 7, b"a.src"),
            line(108, 9, b"\xff"),
        ];
        let bytes = with_record(header(3, 0), CODE_DEBUG_INFO, 10, &lines.concat());
        let bytes = with_record(bytes, CODE_LOAD, 11, &load_of(100, 20, b"first"));
        let bytes = with_record(bytes, 77, 12, b"what is to come");
        let bytes = with_record(bytes, CODE_LOAD, 13, &load_of(200, 20, b"second"));
        with_record(bytes, CODE_MOVE, 14, &words(&[0, 200, 200, 300, 20, 2]))
    }

    #[test]
    fn loads_moves_and_lines_are_read() {
        let changes = parse(&example(), 3).unwrap();
        let times: Vec<u64> = changes.iter().map(|change| change.time_ns).collect();
        assert_eq!(times, [11, 13, 14]);
        assert_eq!(
            changes[0].change,
            Change::Add {
                start: 100,
                end: 120,
                frames: vec![
                    (100, named("first", None, 0)),
                    (104, named("first", Some("a.src"), 7)),
                    (108, named("first", Some("a.src"), 9)),
                ],
            }
        );
        assert_eq!(changes[2].change, Change::Move { from: 200, to: 300 });
        let second = vec![(200, named("second", None, 0))];
        let of_second = Change::Add {
            start: 200,
            end: 220,
            frames: second,
        };
        assert_eq!(changes[1].change, of_second, "lines are of one load only");
    }

    #[test]
    fn files_of_others_and_other_files_are_refused() {
        assert!(parse(&example(), 4).is_none());
        assert!(parse(b"", 3).is_none());
        assert!(parse(b"1000 10 f\n", 3).is_none());
    }

    #[test]
    fn times_of_a_processor_are_not_believed() {
        let body = load_of(100, 20, b"f");
        let bytes = with_record(header(3, FLAG_PROCESSOR_TIME), CODE_LOAD, 11, &body);
        assert_eq!(parse(&bytes, 3).unwrap()[0].time_ns, 0);
    }

    proptest! {
        #[test]
        fn a_file_cut_anywhere_gives_what_is_whole(end in 0usize..400) {
            let bytes = example();
            let whole = parse(&bytes, 3).unwrap();
            let cut = parse(&bytes[..end.min(bytes.len())], 3).unwrap_or_default();
            prop_assert!(whole.starts_with(&cut));
        }

        #[test]
        fn any_bytes_end_without_panic(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = header(3, 0);
            bytes.extend(raw);
            let _ = parse(&bytes, 3);
        }
    }
}
