//! Where the runtime says that code and data are: its `moduledata`, found and read without a table of offsets.

use crate::functions::{Function, FunctionTable, Place};
use crate::image::{Image, Segment};
use crate::memory::{Memory, Relocated, words_of};

/// Words of a `moduledata` that are looked at: what we need is in the first 50 in every version.
const WORDS: usize = 64;
/// Functions whose inlined calls decide where such data begin.
const VOTERS: usize = 400;
/// Fewer are no evidence.
const LEAST_VOTERS: usize = 8;

/// What turns an address of a process into a function.
#[derive(Debug)]
pub(crate) struct Code {
    functions: FunctionTable,
    /// Address of the code's first byte in the process.
    text: u64,
    /// Where the data of functions begins, in the addresses of the file; `None`: no place fits, and inlined functions have no
    /// names.
    data: Option<u64>,
}

impl Code {
    /// Looks for the `moduledata` in the process's variables: it begins with the address of the table of functions, followed by
    /// that of the names.
    pub fn find(
        image: &Image,
        functions: FunctionTable,
        memory: &impl Memory,
        bias: u64,
    ) -> Option<Self> {
        // Before the loader has run, what it is going to write is in the file.
        let relocated = Relocated {
            memory,
            relocations: &image.relocations,
            bias,
        };
        let found = places(image, &functions, memory, bias);
        let (text, data) = found.or_else(|| places(image, &functions, &relocated, bias))?;
        Some(Self {
            functions,
            text,
            data,
        })
    }

    /// An address that can be read as long as the program runs.
    pub fn probe(&self) -> u64 {
        self.text
    }

    /// Whether this address is in a function.
    pub fn contains(&self, address: u64) -> bool {
        self.function_at(address).is_some()
    }

    /// The function of this name, by its addresses in the process.
    pub fn named(&self, name: &str) -> Option<std::ops::Range<u64>> {
        let function = self.functions.named(name)?;
        let address = |offset: u32| self.text.wrapping_add(u64::from(offset));
        Some(address(function.entry)..address(function.end))
    }

    fn function_at(&self, address: u64) -> Option<(Function, u32)> {
        let offset = u32::try_from(address.wrapping_sub(self.text)).ok()?;
        Some((self.functions.find(offset)?, offset))
    }

    /// The source of a return address. Each frame of a bucket is one function of the source, also an inlined one: its address
    /// stands for the innermost function there.
    pub fn place(&self, image: &Image, return_address: u64) -> Option<Place> {
        let (function, offset) = self.function_at(return_address.wrapping_sub(1))?;
        let inlined = self.data.and_then(|base| {
            let index = self.functions.inlined_index(function, offset)?;
            inlined_name(image, &self.functions, function, base, index)
        });
        let name = inlined.or_else(|| self.functions.name_of(function))?;
        let (file, line) = self.functions.line(function, offset).unzip();
        Some(Place {
            function: name,
            file,
            line: line.unwrap_or(0),
        })
    }
}

/// Where the code begins, and the data of functions, by the `moduledata`.
fn places(
    image: &Image,
    functions: &FunctionTable,
    memory: &impl Memory,
    bias: u64,
) -> Option<(u64, Option<u64>)> {
    let table = image.functions.0.wrapping_add(bias);
    let names = table.wrapping_add(functions.names_offset());
    let extent = functions.extent()?;
    let mut writable = image.segments.iter().filter(|it| it.is_writable);
    writable.find_map(|segment| {
        let places = places_of(segment, memory, bias, [table, names]);
        places.into_iter().find_map(|address| {
            let words = memory.words(address, WORDS)?;
            let text = text_of(&words, extent)?;
            let mut bases = words.iter().map(|word| word.wrapping_sub(bias));
            Some((text, bases.find(|&base| is_data(image, functions, base))))
        })
    })
}

/// Addresses in the process at which these two words follow each other.
fn places_of(segment: &Segment, memory: &impl Memory, bias: u64, words: [u64; 2]) -> Vec<u64> {
    const AT_ONCE: u64 = 1 << 20;
    let [first, second] = words;
    let mut found = Vec::new();
    let start = segment.start.next_multiple_of(8);
    let end = segment.start + segment.file_bytes;
    let mut at = start;
    while at < end {
        // One word more, for a pair at the border.
        let length = (end - at).min(AT_ONCE + 8) / 8 * 8;
        let mut bytes = vec![0; length as usize];
        if length < 16 {
            break;
        }
        if memory.read(at.wrapping_add(bias), &mut bytes) {
            let here = words_of(&bytes);
            let pairs = here.windows(2).enumerate();
            found.extend(
                pairs
                    .filter(|(_, pair)| *pair == [first, second])
                    .map(|(index, _)| at.wrapping_add(bias) + 8 * index as u64),
            );
        }
        at += AT_ONCE;
    }
    found
}

/// The start of the code: three words in a row are the lowest and the highest address of functions, and it.
fn text_of(words: &[u64], (first, last): (u32, u32)) -> Option<u64> {
    words.windows(3).find_map(|three| {
        let &[lowest, highest, text] = three else {
            return None;
        };
        let fits = text != 0
            && lowest.wrapping_sub(text) == u64::from(first)
            && highest.wrapping_sub(text) == u64::from(last);
        fits.then_some(text)
    })
}

/// Whether the data of functions begin at `base`: the trees of inlined calls of all functions that are asked are well-formed
/// from there.
fn is_data(image: &Image, functions: &FunctionTable, base: u64) -> bool {
    if image.segment(base).is_none_or(|it| it.is_executable) {
        return false;
    }
    let mut voters = 0;
    for function in functions.all() {
        let Some(most) = functions.most_inlined(function) else {
            continue;
        };
        if functions.inlined_tree(function).is_none() {
            continue;
        }
        let is_named = |index| inlined_name(image, functions, function, base, index).is_some();
        if !(is_named(0) && is_named(most)) {
            return false;
        }
        voters += 1;
        if voters == VOTERS {
            break;
        }
    }
    voters >= LEAST_VOTERS
}

fn inlined_name(
    image: &Image,
    functions: &FunctionTable,
    function: Function,
    base: u64,
    index: u32,
) -> Option<String> {
    let bytes = functions.inlined_bytes();
    let tree = base.checked_add(u64::from(functions.inlined_tree(function)?))?;
    let at = tree.checked_add(u64::from(index).checked_mul(bytes)?)?;
    functions.inlined_name(function, &image.bytes(at, bytes)?)
}
