//! The thread that is started in the other process: its code, and the memory that it works with.
//!
//! ```text
//! region: | code, a page | words, strings, the answer's text | stack of the borrowed thread |
//! ```

pub(crate) const PAGE: u64 = 4096;
pub(crate) const DATA_BYTES: u64 = 32 << 10;
const STACK_BYTES: u64 = 64 << 10;
const TEXT_BYTES: u64 = 8 << 10;
pub(crate) const REGION_BYTES: u64 = PAGE + DATA_BYTES + STACK_BYTES;

// First what the borrowed thread's function returns to: it leaves the result where the return address was, and lets the
// kernel put everything back. Then the helper thread's code. rdi: the words below. It answers, waits until we have read the answer, and lets its own
// memory be unmapped by a jump, from where it does not come back here. Positions are those of `Word`, times 8.
std::arch::global_asm!(
    ".pushsection .rodata.allocsample_helper, \"a\", @progbits",
    ".globl allocsample_helper_start",
    ".hidden allocsample_helper_start",
    "allocsample_helper_start:",
    "mov qword ptr [rsp - 8], rax",
    "mov eax, 15", // rt_sigreturn
    "syscall",
    ".globl allocsample_helper_entry",
    ".hidden allocsample_helper_entry",
    "allocsample_helper_entry:",
    "push rbx",
    "push r12",
    "sub rsp, 8",
    "mov rbx, rdi",
    "call qword ptr [rbx + 8 * 12]", // pthread_self
    "mov rdi, rax",
    "call qword ptr [rbx + 8 * 13]",    // pthread_detach
    "mov rax, qword ptr [rbx + 8 * 1]", // the function
    "test rax, rax",
    "jnz 2f",
    "mov rdi, qword ptr [rbx + 8 * 2]", // the library
    "mov esi, 2",                       // RTLD_NOW
    "call qword ptr [rbx + 8 * 8]",     // dlopen
    "test rax, rax",
    "jz 3f",
    "mov rdi, rax",
    "mov rsi, qword ptr [rbx + 8 * 3]", // the function's name
    "call qword ptr [rbx + 8 * 9]",     // dlsym
    "test rax, rax",
    "jz 3f",
    "2:",
    "mov rdi, qword ptr [rbx + 8 * 4]", // the settings
    "mov rsi, qword ptr [rbx + 8 * 5]", // the text
    "mov rdx, qword ptr [rbx + 8 * 6]", // its capacity
    "call rax",
    "mov dword ptr [rbx + 8 * 7], eax", // the answer
    "jmp 4f",
    "3:",
    "call qword ptr [rbx + 8 * 10]", // dlerror
    "mov qword ptr [rbx + 8 * 11], rax",
    "4:",
    "mov rdi, qword ptr [rbx + 8 * 17]", // the descriptor
    "test edi, edi",
    "js 5f",
    "call qword ptr [rbx + 8 * 16]", // close
    "5:",
    "mov qword ptr [rbx], 1",
    "mov r12d, 10000",
    "6:",
    "cmp qword ptr [rbx], 2",
    "je 7f",
    "mov edi, 1000",
    "call qword ptr [rbx + 8 * 14]", // usleep
    "dec r12d",
    "jnz 6b",
    "7:",
    "mov rdi, qword ptr [rbx + 8 * 18]", // this memory
    "mov rsi, qword ptr [rbx + 8 * 19]", // its bytes
    "mov rax, qword ptr [rbx + 8 * 15]", // munmap
    "add rsp, 8",
    "pop r12",
    "pop rbx",
    "jmp rax",
    ".globl allocsample_helper_end",
    ".hidden allocsample_helper_end",
    "allocsample_helper_end:",
    ".popsection",
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

/// Where the helper thread begins in [`code`]; what is in front of it is for the borrowed thread.
pub(crate) fn entry() -> u64 {
    let start = &raw const allocsample_helper_start;
    let entry = &raw const allocsample_helper_entry;
    (entry.addr() - start.addr()) as u64
}

/// The words that the helper works with, by their position.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(crate) enum Word {
    /// 0: at work; 1: answered; 2: the answer was read.
    State = 0,
    /// 0: to be looked up in the library.
    Function = 1,
    Library = 2,
    FunctionName = 3,
    Settings = 4,
    Text = 5,
    TextBytes = 6,
    Answer = 7,
    Dlopen = 8,
    Dlsym = 9,
    Dlerror = 10,
    LoadError = 11,
    PthreadSelf = 12,
    PthreadDetach = 13,
    Usleep = 14,
    Munmap = 15,
    Close = 16,
    Descriptor = 17,
    Region = 18,
    RegionBytes = 19,
}

const WORDS: usize = 20;
pub(crate) const NOT_ANSWERED: i32 = i32::MIN;
pub(crate) const NO_DESCRIPTOR: u64 = u32::MAX as u64;

/// The helper's memory as it is to be: words, then what they point to.
pub(crate) struct Data {
    words: [u64; WORDS],
    bytes: Vec<u8>,
    /// Where the words are.
    pub start: u64,
}

impl Data {
    pub fn new(region: u64) -> Self {
        let mut data = Self {
            words: [0; WORDS],
            bytes: Vec::new(),
            start: region + PAGE,
        };
        data.set(Word::Answer, u64::from(NOT_ANSWERED.cast_unsigned()));
        data.set(Word::Region, region);
        data.set(Word::RegionBytes, REGION_BYTES);
        data.set(Word::Text, data.start + DATA_BYTES - TEXT_BYTES);
        data.set(Word::TextBytes, TEXT_BYTES);
        data
    }

    pub fn set(&mut self, word: Word, value: u64) {
        self.words[word as usize] = value;
    }

    pub fn point_to(&mut self, word: Word, bytes: &[u8]) {
        let address = self.start + (8 * WORDS + self.bytes.len()) as u64;
        self.bytes.extend_from_slice(bytes);
        self.bytes.push(0);
        self.set(word, address);
    }

    pub fn encode(&self) -> Option<Vec<u8>> {
        let words = self.words.iter().flat_map(|word| word.to_le_bytes());
        let encoded: Vec<u8> = words.chain(self.bytes.iter().copied()).collect();
        (encoded.len() as u64 <= DATA_BYTES - TEXT_BYTES).then_some(encoded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helpers_words_point_to_what_follows_them() {
        let mut data = Data::new(0x10000);
        data.point_to(Word::FunctionName, b"f");
        data.point_to(Word::Library, b"lib");
        let encoded = data.encode().unwrap();
        let text = |word: Word| {
            let at = (data.words[word as usize] - data.start) as usize;
            let text = &encoded[at..];
            &text[..text.iter().position(|&byte| byte == 0).unwrap()]
        };
        assert_eq!(text(Word::FunctionName), b"f");
        assert_eq!(text(Word::Library), b"lib");
        data.bytes.resize(DATA_BYTES as usize, 0);
        assert!(data.encode().is_none());
    }

    #[test]
    fn the_helpers_code_fits_its_page() {
        let code = code();
        assert!(!code.is_empty() && code.len() as u64 <= PAGE);
        // It ends in a jump, so that it never runs on.
        assert_eq!(&code[code.len() - 2..], &[0xff, 0xe0]);
        // The borrowed thread's part ends in its system call.
        let entry = entry() as usize;
        assert_eq!(&code[entry - 2..entry], &[0x0f, 0x05]);
    }
}
