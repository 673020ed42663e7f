//! Where three variables of the runtime are: by their symbols, or by the code that uses them in a stripped executable.

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
    /// `runtime.disableMemoryProfiling`: the linker sets this byte in a program that never reads its profile.
    pub switch: Option<u64>,
    /// Up to Go 1.20, the constant in `runtime.init` that the rate is set to if the switch allows it.
    pub default: Option<u64>,
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
        if self.switch.is_none() {
            self.switch = image.switch.map(|it| it.wrapping_add(bias));
        }
        if self.switch.is_none()
            && let Some((switch, rate)) = switch_and_rate(image, code, bias)
        {
            self.switch = Some(switch);
            self.rate = Some(rate);
        }
        if self.default.is_none()
            && let Some((switch, default)) = switch_and_default(image, code, bias)
        {
            self.switch.get_or_insert(switch);
            self.default = (self.switch == Some(switch)).then_some(default);
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

/// The byte that `runtime.schedinit` tests, and the variable that it then sets to 0: the rate. From Go 1.21 on.
fn switch_and_rate(image: &Image, code: &Code, bias: u64) -> Option<(u64, u64)> {
    const COMPARE: [u8; 2] = [0x80, 0x3d];
    // with 0; if equal, over the next 11 bytes, which move a word
    const AND_JUMP: [u8; 6] = [0, 0x74, 0x0b, 0x48, 0xc7, 0x05];
    const LENGTH: usize = 20;
    let range = code
        .named("runtime.schedinit")
        .filter(|_| image.is_x86_64)?;
    let start = range.start.wrapping_sub(bias);
    let bytes = image.bytes(start, range.end - range.start)?;
    let distance =
        |bytes: &[u8]| -> Option<i64> { Some(i32::from_le_bytes(*bytes.first_chunk()?).into()) };
    let mut found = (start..)
        .zip(bytes.windows(LENGTH))
        .filter_map(|(at, code)| {
            let is_it = code[..2] == COMPARE && code[6..12] == AND_JUMP && code[16..] == [0; 4];
            let switch = at
                .wrapping_add(7)
                .wrapping_add_signed(distance(&code[2..])?);
            let rate = at
                .wrapping_add(20)
                .wrapping_add_signed(distance(&code[12..])?);
            let fits = is_it && image.is_writable(switch) && image.is_variable(rate);
            fits.then_some((switch.wrapping_add(bias), rate.wrapping_add(bias)))
        });
    let only = found.next()?;
    found.next().is_none().then_some(only)
}

/// The byte that `runtime.init` reads, and the constant that it then sets the rate to unless the byte is set. Up to Go 1.20.
fn switch_and_default(image: &Image, code: &Code, bias: u64) -> Option<(u64, u64)> {
    const LOAD: [u8; 3] = [0x0f, 0xb6, 0x05];
    // test the register with itself, and move the default
    const AND_MOVE: [u8; 8] = [0x48, 0x85, 0xc0, 0xb8, 0, 0, 8, 0];
    const LENGTH: usize = 15;
    let range = code.named("runtime.init").filter(|_| image.is_x86_64)?;
    let start = range.start.wrapping_sub(bias);
    let bytes = image.bytes(start, range.end - range.start)?;
    let mut found = (start..)
        .zip(bytes.windows(LENGTH))
        .filter_map(|(at, code)| {
            let is_it = code[..3] == LOAD && code[7..] == AND_MOVE;
            let distance = i32::from_le_bytes(*code[3..].first_chunk()?);
            let switch = at.wrapping_add(7).wrapping_add_signed(distance.into());
            let fits = is_it && image.is_writable(switch);
            fits.then_some((
                switch.wrapping_add(bias),
                at.wrapping_add(11).wrapping_add(bias),
            ))
        });
    let only = found.next()?;
    found.next().is_none().then_some(only)
}

/// The runtime treats larger ones alike.
const MOST_RATE: u64 = 0x0700_0000;
