//! The thread that is started in the other process: its code and its memory.
//!
//! ```text
//! region: | code, a page | words, strings, the answer's text | stack of the borrowed thread |
//! ```
//!
//! At every moment the words say who may be using the region, so that the next command can finish the work of a
//! killed one (`leftover.rs`).

pub(crate) const PAGE: u64 = 4096;
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

// First comes the code that the borrowed thread's function returns to. It stores the result, records that the thread
// has left the function, and lets the kernel put everything back. Then comes the helper thread's code, with the words
// in rdi. It answers, waits until we have read the answer, and jumps to `munmap` for its own memory, from which it
// does not return.
std::arch::global_asm!(
    ".pushsection .rodata.allocsample_helper, \"a\", @progbits",
    ".globl allocsample_helper_start",
    ".hidden allocsample_helper_start",
    "allocsample_helper_start:",
    "mov qword ptr [rip + allocsample_helper_start + {page} + {result}], rax",
    "mov qword ptr [rip + allocsample_helper_start + {page} + {has_returned}], 1",
    "mov eax, 15", // rt_sigreturn
    "syscall",
    ".globl allocsample_helper_entry",
    ".hidden allocsample_helper_entry",
    "allocsample_helper_entry:",
    "push rbx",
    "push r12",
    "sub rsp, 8",
    "mov rbx, rdi",
    "cmp qword ptr [rbx + {is_filtered}], 0",
    "jne 1f",
    "mov eax, 186", // gettid
    "syscall",
    "mov qword ptr [rbx + {helper}], rax",
    "1:",
    "call qword ptr [rbx + {pthread_self}]",
    "mov rdi, rax",
    "call qword ptr [rbx + {pthread_detach}]",
    "mov rax, qword ptr [rbx + {function}]",
    "test rax, rax",
    "jnz 2f",
    // The library's file, if this process can open it.
    "mov rsi, qword ptr [rbx + {file}]",
    "test rsi, rsi",
    "jz 20f",
    "mov edi, -100",    // AT_FDCWD
    "mov edx, 0x80000", // O_RDONLY | O_CLOEXEC
    "mov eax, 257",     // openat
    "syscall",
    "test eax, eax",
    "js 20f",
    "mov edi, eax",
    "mov eax, 3", // close
    "syscall",
    "jmp 30f",
    // A copy of it, which the command writes.
    "20:",
    "mov rdi, qword ptr [rbx + {copy_name}]",
    "mov esi, 1",   // MFD_CLOEXEC
    "mov eax, 319", // memfd_create
    "syscall",
    "test eax, eax",
    "js 28f",
    "mov qword ptr [rbx + {descriptor}], rax",
    // Hardly any process uses so high a number. The descriptor keeps its own number where the limit forbids this one.
    "mov r12d, 1023",
    "21:",
    "mov edi, dword ptr [rbx + {descriptor}]",
    "mov esi, 1030", // F_DUPFD_CLOEXEC
    "mov edx, r12d",
    "mov eax, 72", // fcntl
    "syscall",
    "test eax, eax",
    "jns 22f",
    "shr r12d, 2",
    "cmp r12d, 60",
    "ja 21b",
    "jmp 23f",
    "22:",
    "mov edi, dword ptr [rbx + {descriptor}]",
    "mov qword ptr [rbx + {descriptor}], rax",
    "mov eax, 3",
    "syscall",
    "23:",
    "mov qword ptr [rbx + {state}], {wants_library}",
    "call 40f",
    "lea r12, [rax + {patience}]",
    "24:",
    "mov rax, qword ptr [rbx + {state}]",
    "cmp rax, {working}",
    "je 30f",
    "cmp rax, {end}",
    "je 25f",
    "mov edi, 1000",
    "call qword ptr [rbx + {usleep}]",
    "call 40f",
    "cmp rax, r12",
    "jle 24b",
    "25:",
    "mov edi, dword ptr [rbx + {descriptor}]",
    "mov eax, 3",
    "syscall",
    "jmp 7f",
    "28:",
    "neg eax",
    "mov qword ptr [rbx + {copy_error}], rax",
    "jmp 5f",
    "30:",
    "mov rdi, qword ptr [rbx + {library}]",
    "mov esi, 2", // RTLD_NOW
    "call qword ptr [rbx + {dlopen}]",
    "test rax, rax",
    "jz 3f",
    "mov rdi, rax",
    "mov rsi, qword ptr [rbx + {function_name}]",
    "call qword ptr [rbx + {dlsym}]",
    "test rax, rax",
    "jz 3f",
    "2:",
    "mov rdi, qword ptr [rbx + {settings}]",
    "mov rsi, qword ptr [rbx + {text}]",
    "mov rdx, qword ptr [rbx + {text_bytes}]",
    "call rax",
    "mov dword ptr [rbx + {answer}], eax",
    "jmp 4f",
    "3:",
    "call qword ptr [rbx + {dlerror}]",
    "mov qword ptr [rbx + {load_error}], rax",
    "4:",
    "mov edi, dword ptr [rbx + {descriptor}]",
    "test edi, edi",
    "js 5f",
    "mov eax, 3",
    "syscall",
    "5:",
    "mov qword ptr [rbx + {state}], {answered}",
    "call 40f",
    "lea r12, [rax + {patience}]",
    "6:",
    "cmp qword ptr [rbx + {state}], {end}",
    "je 8f",
    "mov edi, 1000",
    "call qword ptr [rbx + {usleep}]",
    "call 40f",
    "cmp rax, r12",
    "jle 6b",
    // The command did not respond. If the borrowed thread is still in the function, the memory is left to the next
    // command.
    "7:",
    "cmp qword ptr [rbx + {state}], {end}",
    "je 8f",
    "cmp qword ptr [rbx + {has_returned}], 0",
    "jne 8f",
    "mov qword ptr [rbx + {state}], {left}",
    "xor eax, eax",
    "add rsp, 8",
    "pop r12",
    "pop rbx",
    "ret",
    "8:",
    "mov rdi, qword ptr [rbx + {region}]",
    "mov rsi, qword ptr [rbx + {region_bytes}]",
    "mov rax, qword ptr [rbx + {munmap}]",
    "add rsp, 8",
    "pop r12",
    "pop rbx",
    "jmp rax",
    // Returns the seconds since boot. The coarse clock needs neither a system call nor the TSC, which the process may have
    // disabled (PR_SET_TSC).
    "40:",
    "sub rsp, 24",
    "mov edi, 6", // CLOCK_MONOTONIC_COARSE
    "mov rsi, rsp",
    "call qword ptr [rbx + {clock_gettime}]",
    "mov rax, qword ptr [rsp]",
    "add rsp, 24",
    "ret",
    ".globl allocsample_helper_end",
    ".hidden allocsample_helper_end",
    "allocsample_helper_end:",
    ".popsection",
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
        assert_eq!(code.last(), Some(&0xc3));
        // The borrowed thread's part ends in its system call.
        let entry = entry() as usize;
        assert_eq!(&code[entry - 2..entry], &[0x0f, 0x05]);
    }
}
