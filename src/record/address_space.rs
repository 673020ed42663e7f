//! Which module an address belonged to when it was sampled.
//!
//! Replays [`ModuleRecord`]s and [`ModuleUnloadRecord`]s in ring order. The drain thread uses it on live records, the
//! reader on those of a ring that was left behind, so that both attribute alike.

use alloc::collections::BTreeMap;

use crate::{
    CodeChange, CodeRecord, ModuleAgainRecord, ModuleId, ModuleRecord, ModuleUnloadRecord, VmFrame,
};

/// An address as `module + offset`: stable across runs, unlike the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Which module, or [`ModuleId::NONE`].
    pub module: ModuleId,
    /// The address in the module's own program headers (address minus bias); absolute if there is no module.
    pub offset: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapped {
    end: u64,
    bias: u64,
    module: ModuleId,
}

/// The modules mapped, and the code made, at this point of the record stream.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    by_start: BTreeMap<u64, Mapped>,
    modules: u32,
    /// Start, end and function of compiled code. Ranges do not overlap.
    code: BTreeMap<u64, (u64, VmFrame)>,
}

impl AddressSpace {
    /// Nothing mapped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Approximate memory use in bytes.
    pub fn held_bytes(&self) -> u64 {
        /// An entry of a tree whose nodes are half full.
        const ENTRY: usize = 96;
        (ENTRY * (self.by_start.len() + self.code.len())) as u64
    }

    /// Adds a new module, which replaces all that it overlaps; returns its number.
    pub fn map(&mut self, record: &ModuleRecord<'_>) -> ModuleId {
        self.modules += 1;
        let module = ModuleId(self.modules);
        self.place(&ModuleAgainRecord {
            module,
            start: record.start,
            end: record.end,
            bias: record.bias,
        });
        module
    }

    /// Adds a module that has its number already. A number that was never given is refused.
    pub fn map_again(&mut self, record: &ModuleAgainRecord) {
        if (1..=self.modules).contains(&record.module.0) {
            self.place(record);
        }
    }

    fn place(&mut self, record: &ModuleAgainRecord) {
        if record.start >= record.end {
            return;
        }
        let before = self.by_start.range(..record.start).next_back();
        if let Some((&start, _)) = before.filter(|(_, mapped)| mapped.end > record.start) {
            self.by_start.remove(&start);
        }
        while let Some((&start, _)) = self.by_start.range(record.start..record.end).next() {
            self.by_start.remove(&start);
        }
        self.by_start.insert(
            record.start,
            Mapped {
                end: record.end,
                bias: record.bias,
                module: record.module,
            },
        );
    }

    /// Forgets an unloaded module.
    pub fn unmap(&mut self, record: &ModuleUnloadRecord) {
        self.by_start.remove(&record.start);
    }

    /// Applies a change of compiled code. New code replaces all that it overlaps: the memory was reused.
    pub fn change_code(&mut self, record: &CodeRecord) {
        match record.change {
            CodeChange::Add => self.add_code(record.start, record.end, record.frame),
            CodeChange::Remove => {
                self.code.remove(&record.start);
            }
            CodeChange::Move => {
                if let Some((end, frame)) = self.code.remove(&record.start) {
                    let bytes = end - record.start;
                    self.add_code(record.end, record.end.saturating_add(bytes), frame);
                }
            }
        }
    }

    fn add_code(&mut self, start: u64, end: u64, frame: VmFrame) {
        if start >= end {
            return;
        }
        while let Some((&other, &(other_end, _))) = self.code.range(..end).next_back()
            && other_end > start
        {
            self.code.remove(&other);
        }
        self.code.insert(start, (end, frame));
    }

    /// Where modules are mapped now.
    pub fn placements(&self) -> impl Iterator<Item = ModuleAgainRecord> + '_ {
        self.by_start
            .iter()
            .map(|(&start, mapped)| ModuleAgainRecord {
                module: mapped.module,
                start,
                end: mapped.end,
                bias: mapped.bias,
            })
    }

    /// The compiled code that exists now, as records of its creation at `time_ns`.
    pub fn code(&self, time_ns: u64) -> impl Iterator<Item = CodeRecord> + '_ {
        self.code
            .iter()
            .map(move |(&start, &(end, frame))| CodeRecord {
                time_ns,
                change: CodeChange::Add,
                start,
                end,
                frame,
            })
    }

    /// Attributes a return address; the call lies before it, so `address - 1` decides which module it is in.
    pub fn locate(&self, return_address: u64) -> Location {
        if let Some(frame) = VmFrame::decode(return_address) {
            return frame.location();
        }
        let call = return_address.wrapping_sub(1);
        if let Some((_, &(end, frame))) = self.code.range(..=call).next_back()
            && call < end
        {
            return frame.location();
        }
        match self.by_start.range(..=call).next_back() {
            Some((_, mapped)) if call < mapped.end => Location {
                module: mapped.module,
                offset: return_address.wrapping_sub(mapped.bias),
            },
            _ => Location {
                module: ModuleId::NONE,
                offset: return_address,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_code_is_what_was_made_last() {
        let mut space = AddressSpace::new();
        let frame = |function| VmFrame {
            heap: crate::HeapId(1),
            function,
            line: 0,
        };
        let mut change = |change, start, end, function| {
            space.change_code(&CodeRecord {
                time_ns: 0,
                change,
                start,
                end,
                frame: frame(function),
            });
        };
        change(CodeChange::Add, 100, 200, 1);
        change(CodeChange::Add, 300, 400, 2);
        change(CodeChange::Add, 350, 500, 3);
        change(CodeChange::Move, 100, 1000, 0);
        change(CodeChange::Add, 600, 700, 4);
        change(CodeChange::Remove, 600, 0, 0);
        let none = |offset| Location {
            module: ModuleId::NONE,
            offset,
        };
        assert_eq!(space.locate(150), none(150));
        assert_eq!(space.locate(1001), frame(1).location());
        assert_eq!(space.locate(1100), frame(1).location());
        assert_eq!(space.locate(1101), none(1101));
        assert_eq!(space.locate(310), none(310));
        assert_eq!(space.locate(360), frame(3).location());
        assert_eq!(space.locate(650), none(650));
        assert_eq!(space.locate(frame(9).encode()), frame(9).location());
    }

    fn module(start: u64, end: u64) -> ModuleRecord<'static> {
        ModuleRecord {
            start,
            end,
            bias: start,
            build_id: &[],
            path: b"/m",
        }
    }

    #[test]
    fn a_new_module_replaces_what_it_overlaps() {
        let mut space = AddressSpace::new();
        let first = space.map(&module(100, 200));
        let second = space.map(&module(200, 300));
        let third = space.map(&module(150, 250));
        assert_eq!(
            (first, second, third),
            (ModuleId(1), ModuleId(2), ModuleId(3))
        );
        assert_eq!(
            space.locate(120),
            Location {
                module: ModuleId::NONE,
                offset: 120
            }
        );
        assert_eq!(
            space.locate(160),
            Location {
                module: third,
                offset: 10
            }
        );
        assert_eq!(
            space.locate(260),
            Location {
                module: ModuleId::NONE,
                offset: 260
            }
        );
    }

    #[test]
    fn a_module_that_comes_again_has_its_number_in_a_new_place() {
        let mut space = AddressSpace::new();
        let first = space.map(&module(100, 200));
        let second = space.map(&module(100, 250));
        let again = |module, start| ModuleAgainRecord {
            module,
            start,
            end: start + 100,
            bias: start,
        };
        space.map_again(&again(first, 200));
        // Overlapped, so gone.
        assert_eq!(space.locate(150).module, ModuleId::NONE);
        assert_eq!(
            space.locate(260),
            Location {
                module: first,
                offset: 60
            }
        );
        space.map_again(&again(second, 300));
        assert_eq!(space.locate(310).module, second);
        space.map_again(&again(ModuleId(3), 500));
        assert_eq!(space.locate(510).module, ModuleId::NONE);
        assert_eq!(space.map(&module(500, 600)), ModuleId(3));
    }

    #[test]
    fn a_return_address_just_past_the_end_belongs_to_the_call_before_it() {
        let mut space = AddressSpace::new();
        let id = space.map(&module(100, 200));
        assert_eq!(
            space.locate(200),
            Location {
                module: id,
                offset: 100
            }
        );
        assert_eq!(space.locate(100).module, ModuleId::NONE);
        space.unmap(&ModuleUnloadRecord {
            time_ns: 0,
            start: 100,
        });
        assert_eq!(space.locate(150).module, ModuleId::NONE);
    }
}
