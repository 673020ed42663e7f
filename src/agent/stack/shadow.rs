//! Reads a machine's own stack where the machine keeps it, without asking the machine.
//!
//! The machine's memory is taken to be anything: it is copied ([`ForeignPages`]), an address must be aligned, and
//! a chain that leads back into itself is noticed (Brent's way: the place remembered moves on at each power of two). What
//! was read before a fault is kept; the rest of that stack is lost, and is marked so.

use super::foreign::ForeignPages;
use super::vm::RawFrame;

/// Mirror of `allocsample_shadow_stack`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShadowStack {
    /// Bytes of this description.
    pub size: u32,
    /// Size of a frame in bytes, for a row of frames; 0 for a chain.
    pub frame_bytes: u32,
    /// Address of the machine's pointer to the newest frame of a chain, or behind the newest of a row.
    pub top: u64,
    /// The oldest frame of a row.
    pub base: u64,
    /// Offset of the function's number in a frame.
    pub function_offset: u32,
    /// Offset of the line, or [`ShadowStack::NOWHERE`].
    pub line_offset: u32,
    /// Offset of the word that is not 0 in an entry, or [`ShadowStack::NOWHERE`].
    pub entry_offset: u32,
    /// Offset of the address of the caller's frame, for a chain; 0 there is the oldest frame.
    pub caller_offset: u32,
}

const _: () = assert!(size_of::<ShadowStack>() == 40);

/// How a stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// At its oldest frame.
    Whole,
    /// The buffer is full.
    Full,
    /// At memory that cannot be read, or is no frame.
    Broken,
}

impl ShadowStack {
    /// No such field.
    pub const NOWHERE: u32 = u32::MAX;

    /// Whether the description is consistent.
    pub fn is_sensible(&self) -> bool {
        self.size as usize >= size_of::<Self>()
            && self.top != 0
            && self.frame_bytes.is_multiple_of(4)
    }

    /// Fills `frames`, leaf first; returns how many there are. On the thread whose stack it is, also in a signal handler.
    pub(crate) fn read(
        &self,
        frames: &mut [RawFrame],
        pages: &mut ForeignPages,
    ) -> (usize, Ending) {
        pages.forget();
        let Some(top) = pages.read(self.top).map(u64::from_ne_bytes) else {
            return (0, Ending::Broken);
        };
        match self.frame_bytes {
            0 => self.read_chain(top, frames, pages),
            bytes => self.read_row(top, u64::from(bytes), frames, pages),
        }
    }

    fn read_row(
        &self,
        top: u64,
        bytes: u64,
        frames: &mut [RawFrame],
        pages: &mut ForeignPages,
    ) -> (usize, Ending) {
        let length = top.wrapping_sub(self.base);
        if top < self.base || !length.is_multiple_of(bytes) || !top.is_multiple_of(4) {
            return (0, Ending::Broken);
        }
        let mut at = top;
        for (count, place) in frames.iter_mut().enumerate() {
            if at == self.base {
                return (count, Ending::Whole);
            }
            at -= bytes;
            let Some(frame) = self.frame(at, pages) else {
                return (count, Ending::Broken);
            };
            *place = frame;
        }
        match at == self.base {
            true => (frames.len(), Ending::Whole),
            false => (frames.len(), Ending::Full),
        }
    }

    fn read_chain(
        &self,
        top: u64,
        frames: &mut [RawFrame],
        pages: &mut ForeignPages,
    ) -> (usize, Ending) {
        let mut at = top;
        let (mut seen, mut next_look) = (0, 1);
        for (count, place) in frames.iter_mut().enumerate() {
            if at == 0 {
                return (count, Ending::Whole);
            }
            if at == seen || !at.is_multiple_of(8) {
                return (count, Ending::Broken);
            }
            if count == next_look {
                seen = at;
                next_look *= 2;
            }
            let caller = at.checked_add(u64::from(self.caller_offset));
            let (Some(frame), Some(caller)) = (
                self.frame(at, pages),
                caller.and_then(|caller| pages.read(caller)),
            ) else {
                return (count, Ending::Broken);
            };
            *place = frame;
            at = u64::from_ne_bytes(caller);
        }
        match at {
            0 => (frames.len(), Ending::Whole),
            _ => (frames.len(), Ending::Full),
        }
    }

    fn frame(&self, at: u64, pages: &mut ForeignPages) -> Option<RawFrame> {
        let mut field = |offset: u32| match offset {
            Self::NOWHERE => Some(0),
            offset => pages
                .read(at.checked_add(u64::from(offset))?)
                .map(u32::from_ne_bytes),
        };
        Some(RawFrame {
            function: field(self.function_offset)?,
            line: field(self.line_offset)?,
            flags: match field(self.entry_offset)? {
                0 => 0,
                _ => RawFrame::ENTRY,
            },
            reserved: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a chain: caller, function, line.
    #[repr(C)]
    struct Link(u64, u32, u32);

    fn read(links: &[Link], top: u64, room: usize) -> (std::vec::Vec<u32>, Ending) {
        let _ = links;
        let shadow = ShadowStack {
            size: 40,
            frame_bytes: 0,
            top: core::ptr::from_ref(&top).expose_provenance() as u64,
            base: 0,
            function_offset: 8,
            line_offset: 12,
            entry_offset: ShadowStack::NOWHERE,
            caller_offset: 0,
        };
        let mut frames = std::vec![RawFrame::default(); room];
        let mut pages = std::boxed::Box::new(ForeignPages::new());
        let (count, ending) = shadow.read(&mut frames, &mut pages);
        let functions = frames.iter().take(count).map(|frame| frame.function);
        (functions.collect(), ending)
    }

    fn chain(length: u32) -> std::vec::Vec<Link> {
        let mut links: std::vec::Vec<Link> = (0..length).map(|at| Link(0, at + 1, 7)).collect();
        for at in 1..links.len() {
            let caller = core::ptr::from_ref(links.get(at - 1).unwrap());
            links.get_mut(at).unwrap().0 = caller.expose_provenance() as u64;
        }
        links
    }

    fn address(links: &[Link], at: usize) -> u64 {
        core::ptr::from_ref(links.get(at).unwrap()).expose_provenance() as u64
    }

    #[test]
    fn a_chain_is_whole_or_says_that_there_was_no_room() {
        let links = chain(2000);
        let (functions, ending) = read(&links, address(&links, 1999), 2000);
        assert_eq!(ending, Ending::Whole);
        assert!(functions.into_iter().eq((1..=2000).rev()));
        let (functions, ending) = read(&links, address(&links, 1999), 1999);
        assert_eq!((functions.len(), ending), (1999, Ending::Full));
        assert_eq!(read(&links, 0, 9), (std::vec![], Ending::Whole));
    }

    /// Rows of function, line and entry mark.
    fn row(top: u64, base: u64) -> ShadowStack {
        ShadowStack {
            size: 40,
            frame_bytes: 12,
            top,
            base,
            function_offset: 0,
            line_offset: 4,
            entry_offset: 8,
            caller_offset: 0,
        }
    }

    fn read_row(shadow: &ShadowStack, room: usize) -> (std::vec::Vec<[u32; 3]>, Ending) {
        let mut frames = std::vec![RawFrame::default(); room];
        let mut pages = std::boxed::Box::new(ForeignPages::new());
        let (count, ending) = shadow.read(&mut frames, &mut pages);
        let found = frames.iter().take(count);
        let found = found.map(|frame| [frame.function, frame.line, frame.flags]);
        (found.collect(), ending)
    }

    #[test]
    fn a_row_is_read_from_its_newest_frame_down_to_its_base() {
        let words: std::vec::Vec<[u32; 3]> = (1..=9).map(|at| [at, 10 * at, at % 2 * 8]).collect();
        let base = words.as_ptr().expose_provenance() as u64;
        let expected: std::vec::Vec<[u32; 3]> =
            (1..=9).rev().map(|at| [at, 10 * at, at % 2]).collect();
        let top = base + 9 * 12;
        let at = core::ptr::from_ref(&top).expose_provenance() as u64;
        let all = row(at, base);
        assert_eq!(read_row(&all, 20), (expected.clone(), Ending::Whole));
        assert_eq!(read_row(&all, 9), (expected.clone(), Ending::Whole));
        let most = expected.get(..8).unwrap().to_vec();
        assert_eq!(read_row(&all, 8), (most, Ending::Full));
        // Without a line, and without entries.
        let bare = ShadowStack {
            line_offset: ShadowStack::NOWHERE,
            entry_offset: ShadowStack::NOWHERE,
            ..all
        };
        let numbers = expected.iter().map(|frame| [frame[0], 0, 0]).collect();
        assert_eq!(read_row(&bare, 20), (numbers, Ending::Whole));
        // No frame yet, and no room.
        let none = row(at, top);
        assert_eq!(read_row(&none, 20), (std::vec![], Ending::Whole));
        assert_eq!(read_row(&none, 0), (std::vec![], Ending::Whole));
        assert_eq!(read_row(&all, 0), (std::vec![], Ending::Full));
    }

    #[test]
    fn a_row_that_is_none_is_broken() {
        let words = [[1_u32, 2, 3]; 4];
        let base = words.as_ptr().expose_provenance() as u64;
        let broken = |top: u64, base: u64| {
            let at = core::ptr::from_ref(&top).expose_provenance() as u64;
            read_row(&row(at, base), 20)
        };
        let none = (std::vec![], Ending::Broken);
        assert_eq!(broken(base, base + 12), none, "below its base");
        assert_eq!(broken(base + 16, base), none, "between two frames");
        assert_eq!(broken(base + 26, base + 2), none, "not aligned");
        assert_eq!(broken(24, 0), none, "nowhere");
        assert_eq!(read_row(&row(8, base), 20), none, "no pointer to its top");
        // The two frames that are there, and then none.
        let page = crate::os::memory::map(2 * 4096).unwrap();
        let at = page.as_ptr().expose_provenance() as u64 + 4096;
        // SAFETY: mapped above, and nothing refers to it.
        unsafe { crate::os::memory::make_unreadable(page, 4096) };
        let found = broken(at + 24, at - 12);
        assert_eq!(found, (std::vec![[0; 3]; 2], Ending::Broken));
    }

    #[test]
    fn a_description_needs_its_size_a_top_and_whole_words() {
        let good = row(8, 0);
        assert!(good.is_sensible());
        assert!(ShadowStack { size: 48, ..good }.is_sensible());
        assert!(!ShadowStack { size: 39, ..good }.is_sensible());
        assert!(!ShadowStack { top: 0, ..good }.is_sensible());
        let odd = ShadowStack {
            frame_bytes: 14,
            ..good
        };
        assert!(!odd.is_sensible());
    }

    #[test]
    fn what_is_broken_loses_the_rest_alone() {
        for (length, back) in [(1, 0), (2, 0), (9, 8), (100, 0), (100, 37)] {
            let mut links = chain(length);
            let to = address(&links, back);
            links.get_mut(0).unwrap().0 = to;
            let (functions, ending) = read(&links, address(&links, length as usize - 1), 4096);
            assert_eq!(ending, Ending::Broken, "{length} {back}");
            assert!(functions.len() >= length as usize && functions.len() < 4096);
        }
        for wrong in [8, 0xdead_0000, u64::MAX - 7, 1 << 63] {
            let mut links = chain(5);
            links.get_mut(2).unwrap().0 = wrong;
            let found = read(&links, address(&links, 4), 9);
            assert_eq!(found, (std::vec![5, 4, 3], Ending::Broken), "{wrong:#x}");
        }
        let mut links = chain(5);
        links.get_mut(2).unwrap().0 += 4;
        let found = read(&links, address(&links, 4), 9);
        assert_eq!(found, (std::vec![5, 4, 3], Ending::Broken));
    }
}
