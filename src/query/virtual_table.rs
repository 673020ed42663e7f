//! A profile's tables in SQLite, without a copy: it asks for each value when it needs it.
//!
//! A query that names a value of a column, or a range of values, or wants groups by one, gets the rows by an [`Order`].
//! It is made for the first query that needs it, and kept.
//!
//! The only unsafe code of the crate: SQLite's modules are C structures, so that rusqlite asks for a promise about the
//! layout of ours.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use allocsample_profile::Profile;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::vtab::{
    Context, DistinctMode, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConnection,
    VTabCursor, sqlite3_vtab, sqlite3_vtab_cursor,
};
use rusqlite::{Connection, Error, ToSql};

use crate::column::{Kind, Value};
use crate::order::{Order, hash, is_ordered, key};
use crate::reader::{Made, Reader, Scratch};
use crate::table::{Table, tables};

/// What all tables of a profile share.
pub(crate) struct Shared {
    pub profile: Arc<Profile>,
    pub made: Made,
    /// Memory that the order of a table may take.
    pub most_bytes: AtomicUsize,
    /// By name of the table and column.
    orders: Mutex<HashMap<(&'static str, usize), Arc<Order>>>,
}

impl Shared {
    pub fn of(profile: Arc<Profile>, most_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            profile,
            made: Made::default(),
            most_bytes: AtomicUsize::new(most_bytes),
            orders: Mutex::default(),
        })
    }

    #[cfg(test)]
    pub fn order_count(&self) -> usize {
        let orders = self.orders.lock();
        orders.unwrap_or_else(PoisonError::into_inner).len()
    }

    fn reader<'a>(&'a self, scratch: &'a mut Scratch) -> Reader<'a> {
        Reader {
            profile: &self.profile,
            made: &self.made,
            scratch,
        }
    }

    fn order(&self, table: &'static Table, column: usize, scratch: &mut Scratch) -> Arc<Order> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let order = orders.entry((table.name, column));
        let made = || Arc::new(Order::of(&mut self.reader(scratch), table, column));
        Arc::clone(order.or_insert_with(made))
    }
}

/// Makes all tables known to a connection.
pub(crate) fn add_tables(connection: &Connection, shared: &Arc<Shared>) -> rusqlite::Result<()> {
    const MODULE: &Module<'static, VirtualTable> = &Module::eponymous_only_module();
    for table in tables() {
        connection.create_module(table.name, MODULE, Some((Arc::clone(shared), table)))?;
    }
    Ok(())
}

/// One of the tables.
#[repr(C)]
pub(crate) struct VirtualTable {
    base: sqlite3_vtab,
    shared: Arc<Shared>,
    table: &'static Table,
}

// SAFETY: it is laid out as C does it, and `base` comes first.
unsafe impl<'vtab> VTab<'vtab> for VirtualTable {
    type Aux = (Arc<Shared>, &'static Table);
    type Cursor = Cursor;

    fn connect(
        _: &mut VTabConnection,
        of: Option<&Self::Aux>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[&[u8]],
    ) -> rusqlite::Result<(Cow<'static, CStr>, Self)> {
        let (shared, table) = of.ok_or(Error::InvalidQuery)?;
        let definition = CString::new(definition(table))?;
        let connected = Self {
            base: sqlite3_vtab::default(),
            shared: Arc::clone(shared),
            table,
        };
        Ok((Cow::Owned(definition), connected))
    }

    fn best_index(&self, info: &mut IndexInfo) -> rusqlite::Result<bool> {
        let rows = self.shared.reader(&mut Scratch::default()).rows(self.table);
        let most_bytes = self.shared.most_bytes.load(Ordering::Relaxed);
        let plan = match Order::is_possible(rows, most_bytes) {
            true => self.plan(info)?,
            false => Plan::default(),
        };
        let is_unique = plan.column == Some(0);
        let found = match (plan.equal, plan.low, plan.high) {
            (Some(_), ..) if is_unique => 1,
            // Not too few: a join then begins with the table that has more rows, and finds those of the other by number.
            (Some(_), ..) => rows / 64 + 2,
            (None, Some(_), Some(_)) => rows / 16 + 2,
            (None, None, None) => rows,
            _ => rows / 4 + 2,
        };
        let bounds = [plan.equal, plan.low, plan.high];
        for (argument, constraint) in (1..).zip(bounds.into_iter().flatten()) {
            info.constraint_usage(constraint).set_argv_index(argument);
        }
        info.set_idx_num(plan.number());
        info.set_order_by_consumed(plan.is_in_order);
        info.set_estimated_rows(i64::try_from(found).unwrap_or(i64::MAX));
        info.set_estimated_cost(found as f64 + 1.0);
        Ok(true)
    }

    fn open(&'vtab mut self) -> rusqlite::Result<Cursor> {
        Ok(Cursor {
            base: sqlite3_vtab_cursor::default(),
            shared: Arc::clone(&self.shared),
            table: self.table,
            order: None,
            places: 0..0,
            scratch: RefCell::default(),
        })
    }
}

/// How a table is read.
#[derive(Default)]
struct Plan {
    /// In the order of this column; in the table's own order if there is none.
    column: Option<usize>,
    /// The constraints that are used, by their numbers.
    equal: Option<usize>,
    low: Option<usize>,
    high: Option<usize>,
    /// Whether this is the order that is wanted.
    is_in_order: bool,
}

/// Bits of a plan's number, above those of the column.
const EQUAL: c_int = 1 << 8;
const LOW: c_int = 1 << 9;
const HIGH: c_int = 1 << 10;
const COLUMN: c_int = (1 << 8) - 1;

impl Plan {
    /// What the cursor is told.
    fn number(&self) -> c_int {
        let bit = |is_used: bool, bit| if is_used { bit } else { 0 };
        // Tables have some twenty columns.
        self.column.map_or(0, |column| column as c_int + 1)
            | bit(self.equal.is_some(), EQUAL)
            | bit(self.low.is_some(), LOW)
            | bit(self.high.is_some(), HIGH)
    }
}

impl VirtualTable {
    /// A value of a column is best, of the first one before others; then a range; then the order.
    fn plan(&self, info: &IndexInfo) -> rusqlite::Result<Plan> {
        use IndexConstraintOp::{
            SQLITE_INDEX_CONSTRAINT_EQ as EQ, SQLITE_INDEX_CONSTRAINT_GE as GE,
            SQLITE_INDEX_CONSTRAINT_GT as GT, SQLITE_INDEX_CONSTRAINT_LE as LE,
            SQLITE_INDEX_CONSTRAINT_LT as LT,
        };
        let mut plan = Plan::default();
        for (number, constraint) in info.constraints().enumerate() {
            // The row's number is no column.
            let Ok(column) = usize::try_from(constraint.column()) else {
                continue;
            };
            let kind = self.table.columns[column].kind;
            if constraint.is_usable()
                && constraint.operator() == EQ
                && (is_ordered(kind) || kind == Kind::Text && info.collation(number)? == "BINARY")
                && (plan.column.is_none_or(|known| column < known))
            {
                plan.column = Some(column);
                plan.equal = Some(number);
            }
        }
        for (number, constraint) in info.constraints().enumerate() {
            let Ok(column) = usize::try_from(constraint.column()) else {
                continue;
            };
            let is_here = plan.equal.is_none() && plan.column.is_none_or(|known| known == column);
            if !constraint.is_usable() || !is_here || !is_ordered(self.table.columns[column].kind) {
                continue;
            }
            let bound = match constraint.operator() {
                GE | GT => &mut plan.low,
                LE | LT => &mut plan.high,
                _ => continue,
            };
            *bound = Some(number);
            plan.column = Some(column);
        }
        // Groups may come in any order, each in one piece.
        let are_groups = matches!(
            info.distinct(),
            DistinctMode::Grouped | DistinctMode::Distinct
        );
        let mut wanted = info.order_bys();
        if let (Some(first), None) = (wanted.next(), wanted.next())
            && let Ok(column) = usize::try_from(first.column())
            && (are_groups || !first.is_order_by_desc())
            && is_ordered(self.table.columns[column].kind)
            && plan.column.is_none_or(|known| known == column)
        {
            plan.column = Some(column);
            plan.is_in_order = true;
        }
        Ok(plan)
    }
}

/// Rows that SQLite goes through.
#[repr(C)]
pub(crate) struct Cursor {
    base: sqlite3_vtab_cursor,
    shared: Arc<Shared>,
    table: &'static Table,
    order: Option<Arc<Order>>,
    /// Those that are left, of the order's or the table's.
    places: Range<usize>,
    scratch: RefCell<Scratch>,
}

impl Cursor {
    fn row(&self) -> usize {
        let place = self.places.start;
        self.order.as_ref().map_or(place, |order| order.row(place))
    }
}

// SAFETY: it is laid out as C does it, and `base` comes first.
unsafe impl VTabCursor for Cursor {
    fn filter(
        &mut self,
        plan: c_int,
        _: Option<&str>,
        bounds: &Filters<'_>,
    ) -> rusqlite::Result<()> {
        let (shared, table) = (&self.shared, self.table);
        let scratch = self.scratch.get_mut();
        let Ok(column) = usize::try_from((plan & COLUMN) - 1) else {
            self.order = None;
            self.places = 0..shared.reader(scratch).rows(table);
            return Ok(());
        };
        let order = shared.order(table, column, scratch);
        let kind = table.columns[column].kind;
        let mut next = bounds.iter();
        let mut bound = |bit| match plan & bit {
            0 => Bound::Any,
            _ => next
                .next()
                .map_or(Bound::Any, |value| Bound::of(value, kind)),
        };
        let (equal, low, high) = (bound(EQUAL), bound(LOW), bound(HIGH));
        let mut key = |row| key(&mut shared.reader(scratch), table, row, column);
        self.places = match (equal, low, high) {
            // Nothing is equal to NULL, or less, or more.
            (Bound::Null, ..) | (_, Bound::Null, _) | (.., Bound::Null) => 0..0,
            (Bound::Key(equal), ..) => order.between(Some(equal), Some(equal), key),
            (Bound::Any, Bound::Any, Bound::Any) => order.all(),
            (Bound::Any, low, high) => order.between(low.key(), high.key(), &mut key),
        };
        self.order = Some(order);
        Ok(())
    }

    fn next(&mut self) -> rusqlite::Result<()> {
        self.places.start += 1;
        Ok(())
    }

    fn eof(&self) -> bool {
        self.places.is_empty()
    }

    fn column(&self, to: &mut Context, column: c_int) -> rusqlite::Result<()> {
        let mut scratch = self.scratch.borrow_mut();
        let mut reader = self.shared.reader(&mut scratch);
        // SQLite asks for columns that the definition has.
        let value = reader.value(self.table, self.row(), column as usize);
        to.set_result(&value)
    }

    fn rowid(&self) -> rusqlite::Result<i64> {
        Ok(self.row() as i64 + 1)
    }
}

/// What a column's values are compared with. SQLite compares again, so that a bound may be too wide.
enum Bound {
    Any,
    Null,
    Key(i64),
}

impl Bound {
    fn of(value: ValueRef<'_>, kind: Kind) -> Self {
        match (value, kind) {
            (ValueRef::Null, _) => Self::Null,
            (ValueRef::Text(text), Kind::Text) => Self::Key(hash(text)),
            (ValueRef::Integer(number), kind) if is_ordered(kind) => Self::Key(number),
            // A number in a text, a text of a number, a number between two whole ones.
            _ => Self::Any,
        }
    }

    fn key(&self) -> Option<i64> {
        match self {
            Self::Key(key) => Some(*key),
            Self::Any | Self::Null => None,
        }
    }
}

/// As SQL defines it.
fn definition(table: &Table) -> String {
    let columns = table.columns.iter();
    let columns: Vec<String> = columns
        .map(|column| format!("\"{}\" {}", column.name, column.kind.sql_type()))
        .collect();
    format!("CREATE TABLE {} ({})", table.name, columns.join(", "))
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Value::Null => ValueRef::Null,
            Value::Integer(number) => ValueRef::Integer(number),
            Value::Real(number) => ValueRef::Real(number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}
