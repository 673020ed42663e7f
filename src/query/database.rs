//! SQL over a profile's tables, by SQLite in memory.
//!
//! A table is filled when a query reads it, and has only the columns that the query reads: SQLite tells which when it
//! prepares the query for empty tables that have all of them. The database is made read-only before the query runs, and the
//! query may not attach files or load extensions.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use allocsample_profile::{Estimate, Limits, Profile, limits_are_lifted};
use rusqlite::functions::FunctionFlags;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, ToSql};

use crate::answer::{Answer, Cell};
use crate::block::{Block, Sink};
use crate::index::Index;
use crate::table::{Kind, Table, Value, tables};

/// Columns that are worth an index when their table is filled: what tables are joined on.
const JOINED_ON: [(&str, &str); 7] = [
    ("samples", "stack_id"),
    ("samples", "function_id"),
    ("frees", "sample_id"),
    ("frames", "stack_id"),
    ("calls", "call_id"),
    ("functions", "function_id"),
    ("stacks", "stack_id"),
];

/// Memory that a query may take besides the tables that it reads, and an answer as much, where [`Database::allow`] says no less.
const MOST_BYTES: usize = 1 << 30;
/// The longest text that a query may make. SQLite looks at the clock between two steps, and a step like `instr` takes time in
/// proportion to the product of two lengths.
const LONGEST_TEXT: i32 = 1 << 20;
/// The longest pattern of LIKE and GLOB, for the same reason.
const LONGEST_PATTERN: i32 = 1000;

/// Steps of SQLite's virtual machine between two looks at the clock. One step can make a text of the longest, in a millisecond.
const STEPS_BETWEEN_LOOKS: i32 = 500;

/// Rows that are filled together.
const BLOCK_ROWS: usize = 4096;

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// SQLite refuses it.
    #[error("{0}")]
    Sql(String),
    /// It would change something.
    #[error("only SELECT is possible: a profile is never changed")]
    NotReadOnly,
    /// It was interrupted.
    #[error("it was interrupted")]
    Interrupted,
    /// It took too long.
    #[error("there is no answer after {} s; allow more time with --timeout", .0.as_secs())]
    TooSlow(Duration),
    /// It took too much memory.
    #[error("it takes more than {} MiB of memory; ask for fewer or shorter rows, export them by `convert --to parquet`, or use --no-limits", .0 >> 20)]
    TooLarge(usize),
    /// Its tables take too much memory.
    #[error(
        "the tables that it reads take far more memory than a profile of this size does (--no-limits allows it)"
    )]
    TablesTooLarge,
    /// It made a text that is too long.
    #[error("it makes a text of more than {} MiB", LONGEST_TEXT >> 20)]
    TextTooLong,
    /// There is nothing in it.
    #[error("there is no query; `SELECT name FROM tables` lists the tables")]
    Empty,
}

impl From<rusqlite::Error> for QueryError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => return Self::Interrupted,
            Some(ErrorCode::TooBig) => return Self::TextTooLong,
            Some(ErrorCode::OutOfMemory) => return Self::TooLarge(MOST_BYTES),
            _ => {}
        }
        let text = match &error {
            rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
            rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
            rusqlite::Error::MultipleStatement => "one query at a time".to_owned(),
            other => other.to_string(),
        };
        if text.contains("not authorized") || text.contains("readonly database") {
            return Self::NotReadOnly;
        }
        Self::Sql(text)
    }
}

/// A profile that answers SQL.
pub struct Database<'a> {
    profile: &'a Profile,
    /// Whole tables without rows.
    empty: Connection,
    /// Tables with what was asked for so far.
    connection: Connection,
    index: Option<Index<'a>>,
    /// By table, which of its columns are there.
    filled: HashMap<&'static str, Vec<bool>>,
    most_bytes: usize,
}

impl<'a> Database<'a> {
    /// Makes empty tables.
    pub fn new(profile: &'a Profile) -> Result<Self, QueryError> {
        let [empty, connection] = [(); 2].map(|()| open());
        let (empty, connection) = (empty?, connection?);
        for table in tables() {
            empty.execute_batch(&definition(table, |_| true))?;
        }
        for table in tables() {
            for column in table.columns {
                let row = [
                    table.name,
                    column.name,
                    sql_type(column.kind),
                    column.meaning,
                ];
                connection.execute("INSERT INTO tables VALUES (?, ?, ?, ?)", row)?;
            }
        }
        Ok(Self {
            profile,
            empty,
            connection,
            index: None,
            filled: HashMap::new(),
            most_bytes: match limits_are_lifted() {
                true => usize::MAX,
                false => MOST_BYTES,
            },
        })
    }

    /// A query may take no more than so many bytes besides the tables that it reads, and an answer as much, unless limits are
    /// lifted.
    pub fn allow(&mut self, bytes: u64) {
        if !limits_are_lifted() {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            self.most_bytes = self.most_bytes.min(bytes);
        }
    }

    /// Answers one query, and gives up when its own work takes longer than `timeout`. (Filling the tables that it reads comes
    /// before that, in time proportional to the profile.) The whole answer is in memory.
    pub fn query(&mut self, sql: &str, timeout: Option<Duration>) -> Result<Answer, QueryError> {
        self.fill_for(sql)?;
        self.connection.pragma_update(None, "query_only", true)?;
        self.limit_memory()?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_late = move || end.is_some_and(|end| Instant::now() >= end);
        self.connection
            .progress_handler(STEPS_BETWEEN_LOOKS, Some(is_late))?;
        let answer = self.run(sql);
        self.connection.progress_handler(0, None::<fn() -> bool>)?;
        self.connection.pragma_update(None, "query_only", false)?;
        match answer {
            // The progress handler is the only one that interrupts.
            Err(QueryError::Interrupted) => Err(QueryError::TooSlow(timeout.unwrap_or_default())),
            Err(QueryError::TooLarge(_)) => Err(QueryError::TooLarge(self.most_bytes)),
            answer => answer,
        }
    }

    /// Fills the tables that a query reads.
    pub fn fill_for(&mut self, sql: &str) -> Result<(), QueryError> {
        for (table, columns) in self.read_by(sql)? {
            self.fill(table, columns).map_err(|error| match error {
                QueryError::TooLarge(_) => QueryError::TablesTooLarge,
                error => error,
            })?;
        }
        Ok(())
    }

    /// From here on SQLite takes so much more memory than its tables at most. The limit is of the whole process, and SQLite
    /// lowers it but never raises it.
    fn limit_memory(&self) -> Result<(), QueryError> {
        if limits_are_lifted() {
            return Ok(());
        }
        let number = |name| {
            self.connection
                .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
        };
        let tables = number("page_count")?.saturating_mul(number("page_size")?);
        // A sort may hold all of them once more.
        let most = tables.saturating_mul(2);
        let most = most.saturating_add(i64::try_from(self.most_bytes).unwrap_or(i64::MAX));
        // It answers with the limit in force.
        self.connection
            .pragma_update_and_check(None, "hard_heap_limit", most, |_| Ok(()))?;
        Ok(())
    }

    fn run(&self, sql: &str) -> Result<Answer, QueryError> {
        let mut statement = self.connection.prepare(sql)?;
        let columns: Vec<String> = statement
            .column_names()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let mut answer = Answer::new(columns);
        let width = answer.columns().len();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let cells = (0..width).map(|column| Ok(cell(row.get_ref(column)?)));
            answer.push(cells.collect::<Result<_, rusqlite::Error>>()?);
            if answer.held_bytes() > self.most_bytes {
                return Err(QueryError::TooLarge(self.most_bytes));
            }
        }
        Ok(answer)
    }

    /// The tables that a query reads or names, each with which of its columns, found out by preparing it. Refuses what is
    /// no query.
    fn read_by(&self, sql: &str) -> Result<Vec<(&'static Table, Vec<bool>)>, QueryError> {
        let read = Arc::new(Mutex::new(HashSet::new()));
        let seen = Arc::clone(&read);
        self.empty
            .authorizer(Some(move |context: AuthContext<'_>| match context.action {
                AuthAction::Read {
                    table_name,
                    column_name,
                } => {
                    if let Ok(mut seen) = seen.lock() {
                        seen.insert((table_name.to_owned(), column_name.to_owned()));
                    }
                    Authorization::Allow
                }
                AuthAction::Select | AuthAction::Recursive | AuthAction::Function { .. } => {
                    Authorization::Allow
                }
                _ => Authorization::Deny,
            }))?;
        let prepared = self
            .empty
            .prepare(sql)
            .map(|statement| (statement.column_count() > 0, statement.readonly()));
        self.empty
            .authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
        match prepared? {
            (false, true) => return Err(QueryError::Empty),
            (_, false) => return Err(QueryError::NotReadOnly),
            (true, true) => {}
        }
        let read = read.lock().map(|read| read.clone()).unwrap_or_default();
        // Of a table that is only joined, by USING or as NATURAL, nothing is told to the authorizer.
        let words = sql.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
        let words: HashSet<String> = words.map(str::to_ascii_lowercase).collect();
        let is_read = |table: &Table, column: &str| {
            read.contains(&(table.name.to_owned(), column.to_owned()))
                || words.contains(column)
                || words.contains("natural")
        };
        let is_table_read = |table: &&Table| {
            words.contains(table.name) || read.iter().any(|(name, _)| name == table.name)
        };
        let with_columns = |table: &'static Table| {
            let columns = table.columns.iter();
            (table, columns.map(|it| is_read(table, it.name)).collect())
        };
        Ok(tables()
            .iter()
            .filter(is_table_read)
            .map(with_columns)
            .collect())
    }

    /// A row of a few numbers takes a fifth of the room of a whole one.
    fn fill(&mut self, table: &'static Table, mut wanted: Vec<bool>) -> Result<(), QueryError> {
        if let Some(filled) = self.filled.get(table.name) {
            if wanted
                .iter()
                .zip(filled)
                .all(|(wanted, there)| *there || !wanted)
            {
                return Ok(());
            }
            // With what an earlier query wanted, once more.
            for (wanted, there) in wanted.iter_mut().zip(filled) {
                *wanted |= there;
            }
            let drop = format!("DROP TABLE {}", table.name);
            self.connection.execute_batch(&drop)?;
        }
        let mut has_columns = wanted.clone();
        if !has_columns.contains(&true) {
            // Its rows are counted, at most. There is no table without a column.
            has_columns[0] = true;
        }
        let definition = definition(table, |position| has_columns[position]);
        self.connection.execute_batch(&definition)?;
        let index = self.index.get_or_insert_with(|| Index::new(self.profile));
        let marks = vec!["?"; has_columns.iter().filter(|it| **it).count()].join(", ");
        let insert = format!("INSERT INTO {} VALUES ({marks})", table.name);
        let transaction = self.connection.unchecked_transaction()?;
        {
            let mut statement = transaction.prepare(&insert)?;
            let mut insert = |row: &[Value<'_>]| {
                let wanted = row.iter().zip(&wanted).filter(|(_, is_wanted)| **is_wanted);
                for (position, (value, _)) in (1..).zip(wanted) {
                    statement.raw_bind_parameter(position, value)?;
                }
                statement.raw_execute().map(drop)
            };
            let mut insert_all = |block: &mut Block| block.each_row(&mut insert);
            let is_wanted = |position: usize| wanted[position];
            let mut sink = Sink::new(table, is_wanted, BLOCK_ROWS, &mut insert_all);
            table.rows(self.profile, index, &mut sink)?;
            sink.end()?;
        }
        for (column, _) in table.columns.iter().zip(&wanted).filter(|it| *it.1) {
            let (name, column) = (table.name, column.name);
            if JOINED_ON.contains(&(name, column)) {
                transaction.execute_batch(&format!(
                    "CREATE INDEX {name}_by_{column} ON {name} ({column})"
                ))?;
            }
        }
        transaction.commit()?;
        self.filled.insert(table.name, wanted);
        Ok(())
    }
}

/// A database with what all have: functions, and the table that describes the others.
fn open() -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST_TEXT)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)?;
    // Temporary tables in files could fill a disk.
    connection.pragma_update(None, "temp_store", "memory")?;
    add_functions(&connection)?;
    connection
        .execute_batch("CREATE TABLE tables (name TEXT, column TEXT, type TEXT, meaning TEXT)")?;
    Ok(connection)
}

/// SQLite's own mathematics is a compile-time choice, and off.
fn add_functions(connection: &Connection) -> rusqlite::Result<()> {
    type Function = fn(f64) -> f64;
    let one_argument: [(&str, Function); 7] = [
        ("sqrt", f64::sqrt),
        ("ln", f64::ln),
        ("log2", f64::log2),
        ("log10", f64::log10),
        ("exp", f64::exp),
        ("floor", f64::floor),
        ("ceil", f64::ceil),
    ];
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    for (name, function) in one_argument {
        connection.create_scalar_function(name, 1, flags, move |context| {
            Ok(context.get::<Option<f64>>(0)?.map(function))
        })?;
    }
    type Side = fn(Limits) -> f64;
    let limits: [(&str, Side); 2] = [
        ("limit_low", |limits| limits.low),
        ("limit_high", |limits| limits.high),
    ];
    for (name, limit) in limits {
        connection.create_scalar_function(name, 4, flags, move |context| {
            let argument = |index| context.get::<Option<f64>>(index);
            // Sums of no rows are NULL.
            let (value, drawn) = (argument(0)?.unwrap_or(0.0), argument(2)?.unwrap_or(0.0));
            let variance = argument(1)?.unwrap_or(0.0);
            let estimate = Estimate::from_parts(value, Some(variance), 0)
                .with_drawn(drawn)
                .allowing_for(argument(3)?.unwrap_or(0.0));
            Ok(estimate.limits_95().map(limit))
        })?;
    }
    Ok(())
}

/// With those of its columns at whose positions `has` is true.
fn definition(table: &Table, has: impl Fn(usize) -> bool) -> String {
    let columns = table.columns.iter().enumerate();
    let columns: Vec<String> = columns
        .filter(|(position, _)| has(*position))
        .map(|(_, column)| format!("\"{}\" {}", column.name, sql_type(column.kind)))
        .collect();
    format!("CREATE TABLE {} ({})", table.name, columns.join(", "))
}

fn sql_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Integer => "INTEGER",
        Kind::Real => "REAL",
        Kind::Text => "TEXT",
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(match *self {
            Value::Null => ValueRef::Null,
            Value::Integer(number) => ValueRef::Integer(number),
            Value::Real(number) => ValueRef::Real(number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) => Cell::Integer(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Cell::Text(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocsample_profile::Sample;

    #[test]
    fn a_query_without_end_ends() {
        let profile = Profile::default();
        let mut database = Database::new(&profile).unwrap();
        let endless = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT";
        let timeout = Some(Duration::from_millis(50));
        let counted = database.query(&format!("{endless} max(x) FROM t"), timeout);
        assert!(
            matches!(counted, Err(QueryError::TooSlow(_))),
            "{counted:?}"
        );
        database.allow(100_000);
        let listed = database.query(&format!("{endless} x FROM t"), None);
        assert!(matches!(listed, Err(QueryError::TooLarge(_))), "{listed:?}");
        let long = database.query("SELECT zeroblob(1000000000)", None);
        assert!(matches!(long, Err(QueryError::TextTooLong)), "{long:?}");
        let pattern = "SELECT '' LIKE printf('%.*c', 2000, '%')";
        assert!(database.query(pattern, None).is_err());
        let one = database.query("SELECT 1", timeout).unwrap();
        assert_eq!(one.number(0, 0), Some(1.0));
    }

    #[test]
    fn columns_that_a_later_query_reads_are_there_for_it() {
        let mut profile = Profile::default();
        for size in 1..=4 {
            let sample = Sample {
                size,
                address: 100 + size,
                ..Sample::default()
            };
            profile.samples.push(sample);
        }
        let mut database = Database::new(&profile).unwrap();
        for (sql, expected) in [
            ("SELECT sum(size) FROM samples", 10.0),
            ("SELECT sum(address) FROM samples", 410.0),
            ("SELECT count(*) FROM samples", 4.0),
            ("SELECT sum(size + address) FROM samples", 420.0),
            // Whole rows, where names or places of columns tell which is meant.
            (
                "SELECT sum(a) FROM (SELECT *, size * 2 AS a FROM samples)",
                20.0,
            ),
            (
                "WITH w(i, p, c) AS (SELECT * FROM heaps) SELECT count(*) FROM w",
                f64::NAN,
            ),
            (
                "WITH w(i, h, k, b, a, o) AS (SELECT * FROM heaps) SELECT count(k) FROM w",
                1.0,
            ),
            (
                "SELECT count(*) FROM heaps NATURAL JOIN (SELECT * FROM heaps)",
                1.0,
            ),
            (
                "SELECT count(*) FROM (SELECT * FROM heaps UNION ALL SELECT * FROM heaps)",
                2.0,
            ),
            (
                "SELECT count(*) FROM samples WHERE EXISTS (SELECT * FROM threads)",
                0.0,
            ),
            ("SELECT count(*) FROM samples, heaps", 4.0),
        ] {
            match database.query(sql, None) {
                Ok(answer) => assert_eq!(answer.number(0, 0), Some(expected), "{sql}"),
                Err(error) => assert!(expected.is_nan(), "{sql}: {error}"),
            }
        }
    }
}
