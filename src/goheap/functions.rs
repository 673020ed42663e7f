//! The table of functions in a Go executable (`.gopclntab`), which the runtime uses for its own stack traces.
//!
//! ```text
//! header     magic (4), 0, 0, smallest instruction, bytes of a pointer; then words: functions, files, start of the code
//!            (unused), offsets of: names, units, files, tables by pc, functions
//! functions  for each: code offset, offset of its description (4 each); one more code offset: the end
//! describe   code offset, name, arguments, deferreturn, tables: stack, file, line; number of further tables, unit,
//!            [first line, from 1.20 on] (4 each); kind, flags, 0, number of data (1 each); tables and data (4 each)
//! by pc      pairs of varints: zigzag(change of the value), length of the code that has the value; a change of 0 ends
//! inlined    kind (4), name, offset of the call in the function, first line (4 each); in 1.18 and 1.19: parent (2),
//!            kind (2), file, line, name, offset of the call (4 each)
//! ```
//!
//! Everything is read with bounds: the file may be anything.

use std::sync::Arc;

use allocsample_record::SymbolFrame;

/// Layouts differ by version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Go1_18,
    Go1_20,
}

/// Number of the table of inlined calls among a function's tables by pc, and among its data.
const INLINED_INDEX: u32 = 2;
const INLINED_TREE: u32 = 3;
const NONE: u32 = u32::MAX;
/// The longest name that is believed.
const MOST_NAME_BYTES: usize = 1 << 14;

/// The functions of an executable, by offset from the start of its code.
#[derive(Debug)]
pub struct FunctionTable {
    bytes: Vec<u8>,
    layout: Layout,
    quantum: u32,
    functions: u32,
    names: usize,
    units: usize,
    files: usize,
    by_pc: usize,
    describe: usize,
}

/// A function's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Offset of its first instruction.
    pub entry: u32,
    /// Offset of the next function's.
    pub end: u32,
    at: usize,
}

/// The source of one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The function, innermost of inlined ones if it is certain.
    pub function: String,
    /// Source file as the compiler recorded it.
    pub file: Option<String>,
    /// Line, from 1; 0 for unknown.
    pub line: u32,
}

impl Place {
    /// The frame of a profile.
    pub(crate) fn frame(self) -> SymbolFrame {
        SymbolFrame {
            function: Some(self.function.into()),
            file: self.file.map(Arc::from),
            line: self.line,
        }
    }
}

impl FunctionTable {
    /// The table in these bytes, for Go 1.18 and later.
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let layout = match u32_at(&bytes, 0)? {
            0xffff_fff0 => Layout::Go1_18,
            0xffff_fff1 => Layout::Go1_20,
            _ => return None,
        };
        if bytes.get(4..6)? != [0, 0] || *bytes.get(7)? != 8 {
            return None;
        }
        let quantum = u32::from(*bytes.get(6)?);
        let word = |index: usize| {
            let raw = bytes.get(8 + 8 * index..)?.first_chunk()?;
            usize::try_from(u64::from_le_bytes(*raw)).ok()
        };
        let table = Self {
            layout,
            quantum,
            functions: u32::try_from(word(0)?).ok()?,
            names: word(3)?,
            units: word(4)?,
            files: word(5)?,
            by_pc: word(6)?,
            describe: word(7)?,
            bytes,
        };
        // The entries lie within.
        let entries = (table.functions as usize).checked_mul(8)?.checked_add(4)?;
        let end = table.describe.checked_add(entries)?;
        (table.functions > 0 && end <= table.bytes.len()).then_some(table)
    }

    /// Where the names are, from the start of the table.
    pub(crate) fn names_offset(&self) -> u64 {
        self.names as u64
    }

    /// Offsets of the first instruction of all and of the end of the last function.
    pub(crate) fn extent(&self) -> Option<(u32, u32)> {
        Some((self.entry(0)?, self.entry(self.functions)?))
    }

    /// Where a function begins, by number.
    fn entry(&self, index: u32) -> Option<u32> {
        u32_at(&self.bytes, self.describe + 8 * index as usize)
    }

    fn function(&self, index: u32) -> Option<Function> {
        let at = self.describe + 8 * index as usize;
        let function = Function {
            entry: u32_at(&self.bytes, at)?,
            end: self.entry(index + 1)?,
            at: self
                .describe
                .checked_add(u32_at(&self.bytes, at + 4)? as usize)?,
        };
        // The description says it again.
        (self.field(function, 0)? == function.entry && function.entry < function.end)
            .then_some(function)
    }

    /// All functions.
    pub(crate) fn all(&self) -> impl Iterator<Item = Function> {
        (0..self.functions).filter_map(|index| self.function(index))
    }

    /// The function that this instruction is in.
    pub(crate) fn find(&self, offset: u32) -> Option<Function> {
        let (mut low, mut high) = (0, self.functions);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle)? <= offset {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let function = self.function(low.checked_sub(1)?)?;
        (offset < function.end).then_some(function)
    }

    /// The function of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Function> {
        self.all()
            .find(|&it| self.name_of(it).as_deref() == Some(name))
    }

    /// The field at an index of the description.
    fn field(&self, function: Function, index: usize) -> Option<u32> {
        u32_at(&self.bytes, function.at.checked_add(4 * index)?)
    }

    pub(crate) fn name_of(&self, function: Function) -> Option<String> {
        self.name(self.field(function, 1)?)
    }

    /// The name at an offset in the table of names, which begins behind the end of another.
    pub(crate) fn name(&self, offset: u32) -> Option<String> {
        let at = self.names.checked_add(offset as usize)?;
        if at >= self.units || at == 0 || offset != 0 && *self.bytes.get(at - 1)? != 0 {
            return None;
        }
        text_at(&self.bytes, at)
    }

    /// Words of a description before its tables.
    fn fixed(&self) -> usize {
        match self.layout {
            Layout::Go1_18 => 10,
            Layout::Go1_20 => 11,
        }
    }

    /// Where a table by pc is, among the tables beyond file and line.
    fn table(&self, function: Function, number: u32) -> Option<u32> {
        let tables = self.field(function, 7)?;
        (number < tables).then_some(())?;
        self.field(function, self.fixed() + number as usize)
    }

    /// Where the function's tree of inlined calls is, from the base of all such data.
    pub(crate) fn inlined_tree(&self, function: Function) -> Option<u32> {
        let counts = self.field(function, self.fixed() - 1)?.to_le_bytes();
        let tables = self.field(function, 7)?;
        (INLINED_TREE < u32::from(counts[3])).then_some(())?;
        let index = (self.fixed() as u32)
            .checked_add(tables)?
            .checked_add(INLINED_TREE)?;
        let offset = self.field(function, index as usize)?;
        (offset != NONE).then_some(offset)
    }

    /// The number of the innermost inlined call at an instruction; `None` in the function's own code.
    pub(crate) fn inlined_index(&self, function: Function, offset: u32) -> Option<u32> {
        let index = self.value_at(self.table(function, INLINED_INDEX)?, function, offset)?;
        u32::try_from(index).ok()
    }

    /// The largest number of an inlined call in the function.
    pub(crate) fn most_inlined(&self, function: Function) -> Option<u32> {
        let table = self.table(function, INLINED_INDEX)?;
        let mut most = None;
        self.walk(table, function, |value, _| {
            most = most.max(u32::try_from(value).ok());
            false
        });
        most
    }

    /// Bytes of an entry in a tree of inlined calls.
    pub(crate) fn inlined_bytes(&self) -> u64 {
        match self.layout {
            Layout::Go1_18 => 20,
            Layout::Go1_20 => 16,
        }
    }

    /// The name in an entry of a tree of inlined calls; `None` if it cannot be one of this function's.
    pub(crate) fn inlined_name(&self, function: Function, entry: &[u8]) -> Option<String> {
        let (kind, name, call) = match self.layout {
            Layout::Go1_18 => (*entry.get(2)?, u32_at(entry, 12)?, u32_at(entry, 16)?),
            Layout::Go1_20 => (*entry.first()?, u32_at(entry, 4)?, u32_at(entry, 8)?),
        };
        let is_inside = call < function.end - function.entry;
        (kind < 64 && is_inside).then(|| self.name(name)).flatten()
    }

    /// File and line of an instruction.
    pub(crate) fn line(&self, function: Function, offset: u32) -> Option<(String, u32)> {
        let file = self.value_at(self.field(function, 5)?, function, offset)?;
        let line = self.value_at(self.field(function, 6)?, function, offset)?;
        let unit = self
            .field(function, 8)?
            .checked_add(u32::try_from(file).ok()?)?;
        let at = self.units.checked_add(4 * unit as usize)?;
        let name = u32_at(&self.bytes, at)?;
        let name = text_at(&self.bytes, self.files.checked_add(name as usize)?)?;
        Some((name, u32::try_from(line).ok()?))
    }

    fn value_at(&self, table: u32, function: Function, offset: u32) -> Option<i32> {
        let mut found = None;
        self.walk(table, function, |value, end| {
            found = Some(value);
            offset < end
        })
        .then_some(found)?
    }

    /// Gives each value of a table by pc, with the end of the code that has it, until `is_last`; whether it was reached.
    fn walk(
        &self,
        table: u32,
        function: Function,
        mut is_last: impl FnMut(i32, u32) -> bool,
    ) -> bool {
        let walk = || -> Option<bool> {
            if table == 0 {
                return None;
            }
            let at = self.by_pc.checked_add(table as usize)?;
            let mut input = self.bytes.get(at..)?;
            let mut end = function.entry;
            let mut value = -1_i32;
            let mut is_first = true;
            loop {
                let change = varint(&mut input)?;
                if change == 0 && !is_first {
                    return Some(false);
                }
                is_first = false;
                let half = (change >> 1).cast_signed();
                value = value.wrapping_add(if change & 1 != 0 { !half } else { half });
                end = end.checked_add(varint(&mut input)?.checked_mul(self.quantum)?)?;
                if is_last(value, end) {
                    return Some(true);
                }
            }
        };
        let mut walk = walk;
        walk().unwrap_or(false)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn text_at(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let rest = &rest[..rest.len().min(MOST_NAME_BYTES)];
    let end = rest.iter().position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(&rest[..end]).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn varint(input: &mut &[u8]) -> Option<u32> {
    let mut value = 0_u32;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
