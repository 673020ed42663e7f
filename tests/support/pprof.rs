//! Profiles in the form of pprof, read without our own code.

use std::io::Write;
use std::process::{Command, Stdio};

/// Sums of the four values of all samples: objects and bytes allocated, objects and bytes in use.
pub fn sums(gzipped: &[u8]) -> [f64; 4] {
    let message = unzipped(gzipped);
    let mut sums = [0.0; 4];
    for (_, sample) in fields(&message)
        .into_iter()
        .filter(|(field, _)| *field == 2)
    {
        let packed = fields(sample).into_iter().find(|(field, _)| *field == 2);
        if let Some((_, packed)) = packed {
            for (sum, value) in sums.iter_mut().zip(varints(packed)) {
                *sum += value as f64;
            }
        }
    }
    sums
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = Command::new("gzip")
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("gzip");
    let mut input = gzip.stdin.take().expect("a pipe");
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = gzip.wait_with_output().expect("gzip");
    writer.join().expect("no panic").expect("gzip reads");
    assert!(output.status.success());
    output.stdout
}

/// Fields of a protobuf message that have a length.
pub fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = varint(&mut message) as usize;
        if key & 7 == 2 {
            let (content, rest) = message.split_at(length);
            found.push((key >> 3, content));
            message = rest;
        }
    }
    found
}

fn varints(mut bytes: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        found.push(varint(&mut bytes));
    }
    found
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a byte");
        *bytes = rest;
        value |= u64::from(first & 0x7F) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}
