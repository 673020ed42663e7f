//! Long tables as text, made by several threads in blocks of rows.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::mpsc::{channel, sync_channel};

/// Rows of a block: a megabyte of text or so.
const ROWS: usize = 1 << 12;

/// Writes the rows below `count` in their order. `fill` adds the text of some of them to a buffer.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write(
    count: usize,
    out: &mut dyn Write,
    fill: impl Fn(Range<usize>, &mut Vec<u8>) + Sync,
) -> io::Result<()> {
    /// Blocks of each thread that may wait.
    const WAITING: usize = 2;
    let blocks = count.div_ceil(ROWS);
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = available.min(blocks).max(1);
    let rows = |block: usize| block * ROWS..count.min((block + 1) * ROWS);
    if threads == 1 {
        let mut text = Vec::new();
        for block in 0..blocks {
            text.clear();
            fill(rows(block), &mut text);
            out.write_all(&text)?;
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        let fill = &fill;
        let channels: Vec<_> = (0..threads)
            .map(|thread| {
                let (send, receive) = sync_channel(WAITING);
                // A text that was written is filled again: its memory is there already.
                let (send_back, used) = channel::<Vec<u8>>();
                scope.spawn(move || {
                    for block in (thread..blocks).step_by(threads) {
                        let mut text = used.try_recv().unwrap_or_default();
                        text.clear();
                        fill(rows(block), &mut text);
                        // Nobody wants more after an error of `out`.
                        if send.send(text).is_err() {
                            return;
                        }
                    }
                });
                (receive, send_back)
            })
            .collect();
        for block in 0..blocks {
            let (receive, send_back) = &channels[block % threads];
            match receive.recv() {
                Ok(text) => {
                    out.write_all(&text)?;
                    // The other side is gone when it has made all.
                    let _ = send_back.send(text);
                }
                // It panicked, which the scope passes on.
                Err(_) => break,
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, out: &mut dyn Write) -> io::Result<()> {
        write(count, out, |rows, text| {
            for row in rows {
                writeln!(text, "{row}").unwrap();
            }
        })
    }

    #[test]
    fn rows_come_in_their_order() {
        for count in [0, 1, ROWS, 10 * ROWS + 1] {
            let mut out = Vec::new();
            numbers(count, &mut out).unwrap();
            let expected: String = (0..count).map(|row| format!("{row}\n")).collect();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn an_error_ends_it() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let error = numbers(100 * ROWS, &mut Full).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
