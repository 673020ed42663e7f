//! The thread that is started in the other process: its code and its memory.
//!
//! ```text
//! region: | code, a page | words, strings, the answer's text | stack of the borrowed thread |
//! ```
//!
//! At every moment the words say who may be using the region, so that the next command can finish the work of a
//! killed one (`leftover.rs`).

#[cfg_attr(target_arch = "x86_64", path = "helper/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "helper/aarch64.rs")]
mod instructions;

use crate::machine::CODE_BYTES;

/// Assembles the helper's code, with the places of the words and the values of the state as operands.
///
/// First comes the code that the borrowed thread's function returns to. It stores the result, records that the thread has
/// left the function, and lets the kernel put everything back. Then comes the helper thread's code. It answers, waits until
/// we have read the answer, and jumps to `munmap` for its own memory, from which it does not return.
macro_rules! assemble {
    ($($line:literal,)*) => {
        use super::{
            ANSWERED, END, LEFT, PAGE, PATIENCE_S, WANTS_LIBRARY, WORKING, Word, at,
        };

        std::arch::global_asm!(
            $($line,)*
            page = const PAGE,
            patience = const PATIENCE_S,
            working = const WORKING,
            answered = const ANSWERED,
            end = const END,
            wants_library = const WANTS_LIBRARY,
            left = const LEFT,
            state = const at(Word::State),
            has_returned = const at(Word::HasReturned),
            result = const at(Word::Result),
            helper = const at(Word::Helper),
            is_filtered = const at(Word::IsFiltered),
            function = const at(Word::Function),
            file = const at(Word::File),
            library = const at(Word::Library),
            copy_name = const at(Word::CopyName),
            copy_error = const at(Word::CopyError),
            descriptor = const at(Word::Descriptor),
            function_name = const at(Word::FunctionName),
            settings = const at(Word::Settings),
            text = const at(Word::Text),
            text_bytes = const at(Word::TextBytes),
            answer = const at(Word::Answer),
            load_error = const at(Word::LoadError),
            region = const at(Word::Region),
            region_bytes = const at(Word::RegionBytes),
            dlopen = const at(Word::Dlopen),
            dlsym = const at(Word::Dlsym),
            dlerror = const at(Word::Dlerror),
            pthread_self = const at(Word::PthreadSelf),
            pthread_detach = const at(Word::PthreadDetach),
            usleep = const at(Word::Usleep),
            clock_gettime = const at(Word::ClockGettime),
            munmap = const at(Word::Munmap),
        );
    };
}
use assemble;

/// Code and data have different rights: a page or more.
pub(crate) const PAGE: u64 = CODE_BYTES;
pub(crate) const DATA_BYTES: u64 = 32 << 10;
const STACK_BYTES: u64 = 64 << 10;
const TEXT_BYTES: u64 = 8 << 10;
pub(crate) const REGION_BYTES: u64 = PAGE + DATA_BYTES + STACK_BYTES;

/// The value of the first word: this is a region of ours, with the words below.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"aSamplH1");

/// At work, or not begun yet. Values of [`Word::State`].
pub(crate) const WORKING: u64 = 0;
/// The helper has answered, and waits until that is read.
pub(crate) const ANSWERED: u64 = 1;
/// The answer was read, or nobody is there to read it: the helper ends. Set by the command.
pub(crate) const END: u64 = 2;
/// The helper waits until the command has filled [`Word::Descriptor`] with the library and set `WORKING` again.
pub(crate) const WANTS_LIBRARY: u64 = 3;
/// The helper has ended and left its memory to the next command.
pub(crate) const LEFT: u64 = 4;

/// Seconds after which the helper exits if the command does not respond. Measured with the clock, not by counting sleeps: a
/// program that calls `seteuid` in a loop interrupts every sleep of its threads.
const PATIENCE_S: u64 = 10;

const fn at(word: Word) -> usize {
    8 * word as usize
}

unsafe extern "C" {
    static allocsample_helper_start: u8;
    static allocsample_helper_entry: u8;
    static allocsample_helper_end: u8;
}

pub(crate) fn code() -> &'static [u8] {
    let start = &raw const allocsample_helper_start;
    let end = &raw const allocsample_helper_end;
    // SAFETY: both lie in one section, which the code above fills from one to the other.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// Where the helper thread begins in [`code`]; the code before it is for the borrowed thread.
pub(crate) fn entry() -> u64 {
    let start = &raw const allocsample_helper_start;
    let entry = &raw const allocsample_helper_entry;
    (entry.addr() - start.addr()) as u64
}

/// The words that the helper works with, by their position.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Word {
    /// [`MAGIC`].
    Magic,
    /// One of the values above.
    State,
    /// The borrowed thread, by its number in the process's own namespace.
    Caller,
    /// Whether `pthread_create` has returned, and what.
    HasReturned,
    Result,
    /// The helper's own number, in that namespace; 0: it has not begun, or the next word is not 0.
    Helper,
    /// A filter may kill the process for a system call, so the helper makes only those that it needs.
    IsFiltered,
    /// 0: to be looked up in the library.
    Function,
    /// The library's file, to see whether it can be opened; 0: it cannot.
    File,
    /// Its name for `dlopen`.
    Library,
    CopyName,
    /// Why there is no copy.
    CopyError,
    Descriptor,
    FunctionName,
    Settings,
    Text,
    TextBytes,
    Answer,
    LoadError,
    Region,
    RegionBytes,
    Dlopen,
    Dlsym,
    Dlerror,
    PthreadSelf,
    PthreadDetach,
    Usleep,
    ClockGettime,
    Munmap,
}

const WORDS: usize = Word::Munmap as usize + 1;
pub(crate) const NOT_ANSWERED: i32 = i32::MIN;
const NO_DESCRIPTOR: u64 = u32::MAX as u64;
/// Room for a library's name that is known only later: `/proc/self/fd/././` and a number.
const LIBRARY_NAME_BYTES: usize = 64;

/// Where this word of a region is.
pub(crate) fn place(region: u64, word: Word) -> u64 {
    region + PAGE + at(word) as u64
}

/// The initial content of the helper's memory: words, then the data that they point to.
pub(crate) struct Data {
    words: [u64; WORDS],
    bytes: Vec<u8>,
}

impl Data {
    pub fn new() -> Self {
        let mut data = Self {
            words: [0; WORDS],
            bytes: Vec::new(),
        };
        data.set(Word::Magic, MAGIC);
        data.set(Word::Answer, u64::from(NOT_ANSWERED.cast_unsigned()));
        data.set(Word::Descriptor, NO_DESCRIPTOR);
        data.set(Word::RegionBytes, REGION_BYTES);
        data.set(Word::TextBytes, TEXT_BYTES);
        data
    }

    pub fn set(&mut self, word: Word, value: u64) {
        self.words[word as usize] = value;
    }

    /// The word will point to these bytes, and a 0.
    pub fn point_to(&mut self, word: Word, bytes: &[u8]) {
        self.set(word, (8 * WORDS + self.bytes.len()) as u64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.push(0);
    }

    /// The library's name, or room for it.
    pub fn name_library(&mut self, name: &[u8]) {
        let mut name = name.to_vec();
        name.resize(name.len().max(LIBRARY_NAME_BYTES), 0);
        self.point_to(Word::Library, &name);
    }

    /// The content for a region at this address; `None` if it does not fit.
    pub fn encode(&self, region: u64) -> Option<Vec<u8>> {
        const POINTERS: [Word; 6] = [
            Word::File,
            Word::Library,
            Word::CopyName,
            Word::FunctionName,
            Word::Settings,
            Word::Text,
        ];
        let start = region + PAGE;
        let mut words = self.words;
        words[Word::Region as usize] = region;
        words[Word::Text as usize] = DATA_BYTES - TEXT_BYTES;
        for word in POINTERS {
            let pointer = &mut words[word as usize];
            // Nothing is at the words themselves.
            *pointer = if *pointer == 0 { 0 } else { start + *pointer };
        }
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        let encoded: Vec<u8> = words.chain(self.bytes.iter().copied()).collect();
        (encoded.len() as u64 <= DATA_BYTES - TEXT_BYTES).then_some(encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::SYSTEM_CALL;

    #[test]
    fn the_helpers_words_point_to_what_follows_them() {
        const REGION: u64 = 0x10000;
        let mut data = Data::new();
        data.point_to(Word::FunctionName, b"f");
        data.name_library(b"lib");
        let encoded = data.encode(REGION).unwrap();
        let word = |word: Word| {
            let at = at(word);
            u64::from_le_bytes(encoded[at..at + 8].try_into().unwrap())
        };
        let text = |of: Word| {
            let at = (word(of) - REGION - PAGE) as usize;
            let text = &encoded[at..];
            &text[..text.iter().position(|&byte| byte == 0).unwrap()]
        };
        assert_eq!(text(Word::FunctionName), b"f");
        assert_eq!(text(Word::Library), b"lib");
        assert_eq!(word(Word::File), 0);
        assert_eq!(word(Word::Magic), MAGIC);
        assert_eq!(word(Word::Text) + TEXT_BYTES, REGION + PAGE + DATA_BYTES);
        data.bytes.resize(DATA_BYTES as usize, 0);
        assert!(data.encode(REGION).is_none());
    }

    #[test]
    fn the_helpers_code_fits_its_page() {
        let code = code();
        assert!(!code.is_empty() && code.len() as u64 <= PAGE);
        // The code ends with a return, so execution never runs past it.
        assert!(code.ends_with(instructions::RETURN));
        // The borrowed thread's part ends in its system call.
        let entry = entry() as usize;
        assert!(code[..entry].ends_with(&SYSTEM_CALL));
    }
}
