//! Where two variables of the runtime are: by their symbols, or by the code that uses them in a stripped executable.

use crate::buckets::is_list;
use crate::image::Image;
use crate::memory::Memory;
use crate::module::Code;

/// Addresses in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variables {
    /// `runtime.mbuckets`: the list of buckets.
    pub buckets: Option<u64>,
    /// `runtime.MemProfileRate`.
    pub rate: Option<u64>,
}

/// Variables that a function of the runtime uses, by the distances in its instructions. An instruction's operand may be
/// followed by a constant of one or four bytes, and any four bytes look like a distance: what comes out are candidates.
fn used_by(image: &Image, code: &Code, bias: u64, function: &str) -> Vec<u64> {
    let Some(range) = code.named(function).filter(|_| image.is_x86_64) else {
        return Vec::new();
    };
    let start = range.start.wrapping_sub(bias);
    let Some(bytes) = image.bytes(start, range.end - range.start) else {
        return Vec::new();
    };
    let mut found: Vec<u64> = (0_u64..)
        .zip(bytes.windows(4))
        .flat_map(|(at, distance)| {
            let distance = i32::from_le_bytes(distance.try_into().unwrap_or_default());
            [4, 5, 8].map(|behind| {
                let next = start.wrapping_add(at).wrapping_add(behind);
                next.wrapping_add_signed(i64::from(distance))
            })
        })
        .filter(|&address| image.is_variable(address))
        .map(|address| address.wrapping_add(bias))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

impl Variables {
    /// Looks for those that are not known. The list of buckets is recognised once there is one.
    pub fn find(&mut self, image: &Image, code: &Code, memory: &impl Memory, bias: u64) {
        if self.buckets.is_none() {
            self.buckets = image.buckets.map(|it| it.wrapping_add(bias)).or_else(|| {
                let heads = used_by(image, code, bias, "runtime.stkbucket");
                let mut heads = heads.into_iter().filter(|&head| {
                    let first = memory.word(head).unwrap_or(0);
                    first != 0 && is_list(memory, first, |address| code.contains(address))
                });
                heads.next().filter(|_| heads.next().is_none())
            });
        }
        if self.rate.is_none() {
            self.rate = image.rate.map(|it| it.wrapping_add(bias)).or_else(|| {
                // Both draw the distance to the next sample.
                let rates = used_by(image, code, bias, "runtime.profilealloc");
                let others = used_by(image, code, bias, "runtime.allocmcache");
                let mut rates = rates.into_iter().filter(|&at| {
                    others.contains(&at) && memory.word(at).is_some_and(|it| it <= MOST_RATE)
                });
                rates.next().filter(|_| rates.next().is_none())
            });
        }
    }
}

/// The runtime treats larger ones alike.
const MOST_RATE: u64 = 0x0700_0000;
