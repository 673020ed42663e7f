//! Rows by column: some thousand at a time, which fit into a processor's cache.

use rustc_hash::FxHashMap;

use crate::table::{Column, Kind, Table, Value};

/// Rows of one table.
pub(crate) struct Block {
    rows: usize,
    columns: Vec<Filled>,
}

/// A column of them.
pub(crate) struct Filled {
    pub column: &'static Column,
    /// Others stay empty.
    is_wanted: bool,
    /// Those that are there.
    pub values: Values,
    /// The rows that have none, in their order.
    pub missing: Vec<u32>,
}

/// Values of one kind.
pub(crate) enum Values {
    Integers(Vec<i64>),
    Reals(Vec<f64>),
    Texts(Texts),
}

/// Texts of which many come again.
#[derive(Default)]
pub(crate) struct Texts {
    /// One behind the other.
    pub bytes: String,
    /// Where each begins and ends in that.
    pub ranges: Vec<(usize, usize)>,
    /// Of each value, which it is.
    pub numbers: Vec<u32>,
    /// By address and length of the text that was pushed, which it was then.
    known: FxHashMap<(usize, usize), u32>,
    last: Option<((usize, usize), u32)>,
}

impl Block {
    fn new(table: &Table, wanted: impl Fn(usize) -> bool) -> Self {
        let filled = |(position, column): (usize, &'static Column)| Filled {
            column,
            is_wanted: wanted(position),
            values: match column.kind {
                Kind::Integer => Values::Integers(Vec::new()),
                Kind::Real => Values::Reals(Vec::new()),
                Kind::Text => Values::Texts(Texts::default()),
            },
            missing: Vec::new(),
        };
        Self {
            rows: 0,
            columns: table.columns.iter().enumerate().map(filled).collect(),
        }
    }

    /// How many there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// In the table's order.
    pub(crate) fn columns_mut(&mut self) -> &mut [Filled] {
        &mut self.columns
    }

    /// Hands its rows to `take`, one at a time. Columns that are not wanted are NULL.
    pub(crate) fn each_row<E>(
        &self,
        mut take: impl FnMut(&[Value<'_>]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut cursors = vec![(0, 0); self.columns.len()];
        let mut row = vec![Value::Null; self.columns.len()];
        for number in 0..self.rows {
            for ((value, filled), (next, next_missing)) in
                row.iter_mut().zip(&self.columns).zip(&mut cursors)
            {
                let is_missing = filled.missing.get(*next_missing) == Some(&(number as u32));
                if is_missing || !filled.is_wanted {
                    *next_missing += 1;
                    *value = Value::Null;
                } else {
                    *value = filled.values.get(*next);
                    *next += 1;
                }
            }
            take(&row)?;
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.rows = 0;
        for filled in &mut self.columns {
            filled.missing.clear();
            match &mut filled.values {
                Values::Integers(values) => values.clear(),
                Values::Reals(values) => values.clear(),
                Values::Texts(texts) => texts.clear(),
            }
        }
    }
}

impl Filled {
    /// Adds the values of the rows from number `row` on. One of another kind counts as missing.
    fn extend<'v, T: Into<Value<'v>>>(&mut self, row: usize, from: impl Iterator<Item = T>) {
        if !self.is_wanted {
            return;
        }
        let mut miss = |row, value| {
            debug_assert_eq!(value, Value::Null, "a value of another kind");
            self.missing.push(row);
        };
        let rows = (row as u32..).zip(from);
        match &mut self.values {
            Values::Integers(values) => rows.for_each(|(row, value)| match value.into() {
                Value::Integer(number) => values.push(number),
                other => miss(row, other),
            }),
            Values::Reals(values) => rows.for_each(|(row, value)| match value.into() {
                Value::Real(number) => values.push(number),
                other => miss(row, other),
            }),
            Values::Texts(texts) => rows.for_each(|(row, value)| match value.into() {
                Value::Text(text) => texts.push(text),
                other => miss(row, other),
            }),
        }
    }
}

impl Values {
    fn get(&self, index: usize) -> Value<'_> {
        match self {
            Self::Integers(values) => Value::Integer(values[index]),
            Self::Reals(values) => Value::Real(values[index]),
            Self::Texts(texts) => Value::Text(texts.get(index)),
        }
    }
}

impl Texts {
    fn push(&mut self, text: &str) {
        let key = (text.as_ptr().addr(), text.len());
        // A text that comes again mostly lies where it lay, and mostly at once; but others may lie there now.
        let last = self.last.filter(|(last, _)| *last == key);
        let known = match last {
            Some((_, known)) => Some(known),
            None => self.known.get(&key).copied(),
        };
        let number = match known.filter(|&known| self.is(known, text)) {
            Some(known) => known,
            None => {
                let begin = self.bytes.len();
                self.bytes.push_str(text);
                let number = self.ranges.len() as u32;
                self.ranges.push((begin, self.bytes.len()));
                self.known.insert(key, number);
                number
            }
        };
        self.numbers.push(number);
        self.last = Some((key, number));
    }

    fn is(&self, number: u32, text: &str) -> bool {
        let (begin, end) = self.ranges[number as usize];
        // Not as text: whether a character begins there is known.
        self.bytes.as_bytes()[begin..end] == *text.as_bytes()
    }

    fn get(&self, index: usize) -> &str {
        let (begin, end) = self.ranges[self.numbers[index] as usize];
        &self.bytes[begin..end]
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
        self.numbers.clear();
        self.known.clear();
        self.last = None;
    }
}

/// Takes the rows of one table, and hands them on in blocks; an error ends the table.
pub(crate) struct Sink<'a, E> {
    block: Block,
    /// A block of so many rows is full.
    full: usize,
    take: &'a mut dyn FnMut(&mut Block) -> Result<(), E>,
}

impl<'a, E> Sink<'a, E> {
    /// Blocks of at least `full` rows, but for the last one, with the columns for whose positions `wanted` is true.
    pub(crate) fn new(
        table: &Table,
        wanted: impl Fn(usize) -> bool,
        full: usize,
        take: &'a mut dyn FnMut(&mut Block) -> Result<(), E>,
    ) -> Self {
        Self {
            block: Block::new(table, wanted),
            full,
            take,
        }
    }

    /// One row.
    pub(crate) fn row(&mut self, row: &[Value<'_>]) -> Result<(), E> {
        for (filled, value) in self.block.columns.iter_mut().zip(row) {
            filled.extend(self.block.rows, std::iter::once(*value));
        }
        self.added(1)
    }

    /// Some thousand rows at most.
    pub(crate) fn rows(
        &mut self,
        count: usize,
        fill: impl FnOnce(&mut Columns<'_>),
    ) -> Result<(), E> {
        fill(&mut Columns {
            row: self.block.rows,
            columns: self.block.columns.iter_mut(),
        });
        self.added(count)
    }

    fn added(&mut self, rows: usize) -> Result<(), E> {
        self.block.rows += rows;
        match self.block.rows >= self.full {
            true => self.hand_on(),
            false => Ok(()),
        }
    }

    fn hand_on(&mut self) -> Result<(), E> {
        (self.take)(&mut self.block)?;
        self.block.clear();
        Ok(())
    }

    /// What is left.
    pub(crate) fn end(mut self) -> Result<(), E> {
        match self.block.rows {
            0 => Ok(()),
            _ => self.hand_on(),
        }
    }
}

/// Columns that are to be filled, one after the other.
pub(crate) struct Columns<'a> {
    row: usize,
    columns: std::slice::IterMut<'a, Filled>,
}

impl Columns<'_> {
    /// Fills the next one: a value for each row, which is not asked for if nobody wants the column.
    pub(crate) fn next<'v, T: Into<Value<'v>>>(&mut self, values: impl Iterator<Item = T>) {
        if let Some(filled) = self.columns.next() {
            filled.extend(self.row, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Source;

    const fn column(name: &'static str, kind: Kind, is_nullable: bool) -> Column {
        Column {
            name,
            kind,
            is_nullable,
            meaning: "",
        }
    }

    /// Numbers that are always there, a text and a number that may be missing.
    const TABLE: Table = Table {
        name: "lines",
        meaning: "",
        columns: &[
            column("fifth", Kind::Integer, false),
            column("rest", Kind::Integer, false),
            column("other", Kind::Integer, false),
            column("file", Kind::Text, true),
            column("line", Kind::Integer, true),
        ],
        source: Source::Calls,
    };

    /// The rows of a block, with texts of their own.
    fn rows(block: &Block) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let take = |row: &[Value<'_>]| {
            rows.push(row.iter().map(|value| format!("{value:?}")).collect());
            Ok::<(), ()>(())
        };
        block.each_row(take).unwrap();
        rows
    }

    fn row(number: u32) -> [Value<'static>; 5] {
        let file = ["a.c", "b.c", "a.c", "longer.c"][number as usize % 4];
        [
            (number / 5).into(),
            (number % 5).into(),
            (number * 31 % 11).into(),
            (number % 3 != 1).then_some(file).into(),
            Some(number % 7).filter(|&line| line != 0).into(),
        ]
    }

    #[test]
    fn rows_are_the_same_one_by_one_and_by_column() {
        const ROWS: u32 = 1000;
        let (mut single, mut columns) = (Vec::new(), Vec::new());
        let mut take = |block: &mut Block| {
            assert!(block.rows() == 128 || single.len() + block.rows() == ROWS as usize);
            single.extend(rows(block));
            Ok::<(), ()>(())
        };
        let mut sink = Sink::new(&TABLE, |_| true, 128, &mut take);
        // Texts of different content in the same place.
        let mut text = String::with_capacity(100);
        for number in 0..ROWS {
            let mut values: [Value<'_>; 5] = row(number);
            if let Value::Text(file) = values[3] {
                text.clear();
                text.push_str(file);
                values[3] = Value::Text(&text);
            }
            sink.row(&values).unwrap();
        }
        sink.end().unwrap();
        let mut take = |block: &mut Block| {
            columns.extend(rows(block));
            Ok::<(), ()>(())
        };
        let mut sink = Sink::new(&TABLE, |_| true, 128, &mut take);
        for begin in (0..ROWS).step_by(100) {
            let each = || (begin..begin + 100).map(row);
            let fill = |to: &mut Columns<'_>| {
                for column in 0..5 {
                    to.next(each().map(|row| row[column]));
                }
            };
            sink.rows(100, fill).unwrap();
        }
        sink.end().unwrap();
        assert_eq!(single.len(), ROWS as usize);
        assert_eq!(single, columns);
        let expected = |number| row(number).map(|value| format!("{value:?}")).to_vec();
        assert_eq!(single, (0..ROWS).map(expected).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_wanted_is_not_asked_for() {
        let mut seen = Vec::new();
        let mut take = |block: &mut Block| {
            seen.extend(rows(block));
            Ok::<(), ()>(())
        };
        let mut sink = Sink::new(&TABLE, |position| position == 1, 10, &mut take);
        let fill = |to: &mut Columns<'_>| {
            to.next(std::iter::repeat_with(|| -> u32 { panic!("not wanted") }));
            to.next([7_u32, 8].into_iter());
        };
        sink.rows(2, fill).unwrap();
        sink.end().unwrap();
        let null = || "Null".to_owned();
        let row = |depth: i64| {
            vec![
                null(),
                format!("{:?}", Value::Integer(depth)),
                null(),
                null(),
                null(),
            ]
        };
        assert_eq!(seen, [row(7), row(8)]);
    }
}
