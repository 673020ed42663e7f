//! Gzip on a thread of its own, beside the thread that writes.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Bytes handed over at once: every call of the packer costs as much as compressing some hundred bytes.
const BLOCK: usize = 1 << 18;

/// Blocks that may wait for the packer.
const WAITING: usize = 4;

/// Compresses what `fill` writes.
///
/// # Errors
/// Those of `fill`, and of `out`.
pub fn write(
    out: &mut (dyn Write + Send),
    fill: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let (full, blocks) = sync_channel(WAITING);
        let (used, empty) = channel();
        let packer = scope.spawn(move || pack(&blocks, &used, out));
        let mut writer = Blocks {
            block: Vec::new(),
            full,
            empty,
        };
        let filled = fill(&mut writer).and_then(|()| Ok(writer.flush()?));
        // The packer ends when nothing more can come.
        drop(writer);
        let packed = packer.join();
        // The packer's error explains why writing has ended.
        packed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        filled
    })
}

fn pack(
    blocks: &Receiver<Vec<u8>>,
    used: &Sender<Vec<u8>>,
    out: &mut (dyn Write + Send),
) -> io::Result<()> {
    // The fastest level compresses JSON to a tenth. The best one makes it some percent smaller and takes five times
    // as long.
    let mut packer = GzEncoder::new(out, Compression::fast());
    for block in blocks {
        packer.write_all(&block)?;
        // Nobody takes the block back at the end.
        let _ = used.send(block);
    }
    packer.finish()?.flush()
}

/// The side that hands blocks to the packer.
struct Blocks {
    block: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    /// Used blocks, returned for reuse.
    empty: Receiver<Vec<u8>>,
}

impl Write for Blocks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.block.extend_from_slice(bytes);
        if self.block.len() >= BLOCK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut empty = self.empty.try_recv().unwrap_or_default();
        empty.clear();
        let block = std::mem::replace(&mut self.block, empty);
        let sent = self.full.send(block);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{anyhow, bail};
    use flate2::read::GzDecoder;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn what_comes_out_is_what_went_in() {
        for count in [0_u32, 1, 500_000] {
            let mut out = Vec::new();
            let numbers = |out: &mut dyn Write| -> anyhow::Result<()> {
                (0..count).try_for_each(|number| Ok(writeln!(out, "{number}")?))
            };
            write(&mut out, numbers).unwrap();
            let mut expected = Vec::new();
            numbers(&mut expected).unwrap();
            let mut found = Vec::new();
            GzDecoder::new(&out[..]).read_to_end(&mut found).unwrap();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn an_error_on_either_side_is_told() {
        let error = write(&mut Vec::new(), |_| bail!("no more")).unwrap_err();
        assert_eq!(error.to_string(), "no more");
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let endless = |out: &mut dyn Write| loop {
            out.write_all(&[0; 1000]).map_err(|error| anyhow!(error))?;
        };
        let error = write(&mut full, endless).unwrap_err();
        let error: io::Error = error.downcast().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
