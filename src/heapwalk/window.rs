//! The memory of another process, read in stretches.

/// What the walk needs of the process. Every method may answer for a slightly different moment.
pub trait Target {
    /// Reads memory from an address on, and returns how many bytes were read: fewer where memory ends, 0 where there is none.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;

    /// Whether each of `count` pages from this address on is in memory.
    fn residents(&self, start: u64, count: usize) -> Vec<bool>;

    /// Size of a page.
    fn page_bytes(&self) -> u64;
}

/// A mapping that can be read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// As the kernel names it; empty for anonymous memory.
    pub name: String,
}

const LEAST_WINDOW: usize = 4 << 10;
const MOST_WINDOW: usize = 256 << 10;

/// Words of a target, read ahead where reading goes on in order.
pub struct Window<'a> {
    target: &'a dyn Target,
    start: u64,
    bytes: Vec<u8>,
    next_length: usize,
}

impl<'a> Window<'a> {
    pub fn new(target: &'a dyn Target) -> Self {
        Self {
            target,
            start: 0,
            bytes: Vec::new(),
            next_length: LEAST_WINDOW,
        }
    }

    pub fn target(&self) -> &'a dyn Target {
        self.target
    }

    /// What was read is read again.
    pub fn forget(&mut self) {
        self.bytes.clear();
    }

    /// The word at an address that is a multiple of 8. `None`: its page is not in memory.
    #[inline]
    pub fn word(&mut self, address: u64) -> Option<u64> {
        self.known(address).or_else(|| self.fetch(address))
    }

    #[inline]
    fn known(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let word = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }

    /// A single word, without the pages around it: for places that nothing else will be read of.
    pub fn single(&mut self, address: u64) -> Option<u64> {
        self.known(address).or_else(|| word(self.target, address))
    }

    #[cold]
    fn fetch(&mut self, address: u64) -> Option<u64> {
        let read_to = self.start + self.bytes.len() as u64;
        let is_next = (self.start..read_to + LEAST_WINDOW as u64).contains(&address);
        self.next_length = match is_next {
            true => (2 * self.next_length).min(MOST_WINDOW),
            false => LEAST_WINDOW,
        };
        let page_bytes = self.target.page_bytes();
        let start = address & !(page_bytes - 1);
        let pages = self.next_length.div_ceil(page_bytes as usize);
        let residents = self.target.residents(start, pages);
        let length = residents.iter().take_while(|it| **it).count() * page_bytes as usize;
        self.start = start;
        self.bytes.resize(length, 0);
        let read = self.target.read(start, &mut self.bytes);
        self.bytes.truncate(read);
        self.known(address)
    }
}

/// One word, if its page is in memory.
pub fn word(target: &dyn Target, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let page = address & !(target.page_bytes() - 1);
    let is_resident = target.residents(page, 1).first() == Some(&true);
    let read = match is_resident {
        true => target.read(address, &mut bytes),
        false => 0,
    };
    (read == bytes.len()).then(|| u64::from_le_bytes(bytes))
}

/// A piece of memory, with zeros in place of pages that are not there. Empty if nothing is.
pub fn copy(target: &dyn Target, start: u64, length: usize) -> Vec<u8> {
    let page_bytes = target.page_bytes();
    let first_page = start / page_bytes * page_bytes;
    let before = (start - first_page) as usize;
    let count = (before + length).div_ceil(page_bytes as usize);
    let mut pages = vec![0; count * page_bytes as usize];
    let mut has_any = false;
    let residents = target.residents(first_page, count);
    for (number, _) in residents.iter().enumerate().filter(|it| *it.1) {
        let offset = number * page_bytes as usize;
        let page = &mut pages[offset..offset + page_bytes as usize];
        has_any |= target.read(first_page + offset as u64, page) > 0;
    }
    match has_any {
        true => pages[before..before + length].to_vec(),
        false => Vec::new(),
    }
}
