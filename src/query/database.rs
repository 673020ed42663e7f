//! SQL over a profile's tables, by SQLite.
//!
//! The tables are virtual: SQLite asks for each value when a query needs it, and nothing is copied. They cannot be written
//! to, and a query may not attach files or load extensions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use allocsample_profile::{Estimate, Limits, Profile, limits_are_lifted};
use rusqlite::functions::FunctionFlags;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, Statement};

use crate::answer::{Answer, Cell};
use crate::table::tables;
use crate::virtual_table::{Shared, add_tables};

/// Memory that a query may take, and an answer as much, where [`Database::allow`] says no less.
const MOST_BYTES: usize = 1 << 30;
/// The longest text that a query may make. SQLite looks at the clock between two steps, and a step like `instr` takes time in
/// proportion to the product of two lengths.
const LONGEST_TEXT: i32 = 1 << 20;
/// The longest pattern of LIKE and GLOB, for the same reason.
const LONGEST_PATTERN: i32 = 1000;

/// Steps of SQLite's virtual machine between two looks at the clock. One step can make a text of the longest, in a millisecond.
const STEPS_BETWEEN_LOOKS: i32 = 500;

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
        let is_refused = |what: &&str| text.contains(what);
        if ["not authorized", "readonly database", "may not be modified"]
            .iter()
            .any(is_refused)
        {
            return Self::NotReadOnly;
        }
        Self::Sql(text)
    }
}

/// A profile that answers SQL.
pub struct Database {
    connection: Connection,
    shared: Arc<Shared>,
    most_bytes: usize,
}

impl Database {
    /// Of a profile's tables. Nothing is read yet.
    pub fn new(profile: Arc<Profile>) -> Result<Self, QueryError> {
        let most_bytes = match limits_are_lifted() {
            true => usize::MAX,
            false => MOST_BYTES,
        };
        let shared = Shared::of(profile, most_bytes);
        let connection = Connection::open_in_memory()?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST_TEXT)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_PATTERN)?;
        // Temporary tables in files could fill a disk.
        connection.pragma_update(None, "temp_store", "memory")?;
        add_functions(&connection)?;
        add_tables(&connection, &shared)?;
        describe_tables(&connection)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(Self {
            connection,
            shared,
            most_bytes,
        })
    }

    /// A query may take no more than so many bytes, and an answer as much, unless limits are lifted.
    pub fn allow(&mut self, bytes: u64) {
        if !limits_are_lifted() {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            self.most_bytes = self.most_bytes.min(bytes);
            let shared = &self.shared.most_bytes;
            shared.store(self.most_bytes, Ordering::Relaxed);
        }
    }

    /// Answers one query, and gives up when that takes longer than `timeout`. (To number stacks and to put rows in order
    /// takes time in proportion to the profile, and is not interrupted.) The whole answer is in memory.
    pub fn query(&mut self, sql: &str, timeout: Option<Duration>) -> Result<Answer, QueryError> {
        self.limit_memory()?;
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_late = move || end.is_some_and(|end| Instant::now() >= end);
        self.connection
            .progress_handler(STEPS_BETWEEN_LOOKS, Some(is_late))?;
        let answer = self.prepare(sql).and_then(|statement| self.run(statement));
        self.connection.progress_handler(0, None::<fn() -> bool>)?;
        match answer {
            // The progress handler is the only one that interrupts.
            Err(QueryError::Interrupted) => Err(QueryError::TooSlow(timeout.unwrap_or_default())),
            Err(QueryError::TooLarge(_)) => Err(QueryError::TooLarge(self.most_bytes)),
            answer => answer,
        }
    }

    /// From here on SQLite takes so much memory at most. The limit is of the whole process, and SQLite lowers it but never
    /// raises it.
    fn limit_memory(&self) -> Result<(), QueryError> {
        if limits_are_lifted() {
            return Ok(());
        }
        let most = i64::try_from(self.most_bytes).unwrap_or(i64::MAX);
        // It answers with the limit in force.
        self.connection
            .pragma_update_and_check(None, "hard_heap_limit", most, |_| Ok(()))?;
        Ok(())
    }

    /// Refuses what is no query.
    fn prepare(&self, sql: &str) -> Result<Statement<'_>, QueryError> {
        let is_allowed = |context: AuthContext<'_>| match context.action {
            AuthAction::Read { .. }
            | AuthAction::Select
            | AuthAction::Recursive
            | AuthAction::Function { .. } => Authorization::Allow,
            _ => Authorization::Deny,
        };
        self.connection.authorizer(Some(is_allowed))?;
        let statement = self.connection.prepare(sql);
        self.connection
            .authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
        let statement = statement?;
        match (statement.column_count() > 0, statement.readonly()) {
            (true, true) => Ok(statement),
            (false, true) => Err(QueryError::Empty),
            (_, false) => Err(QueryError::NotReadOnly),
        }
    }

    fn run(&self, mut statement: Statement<'_>) -> Result<Answer, QueryError> {
        let names = statement.column_names();
        let mut answer = Answer::new(names.into_iter().map(str::to_owned).collect());
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
}

/// Fills the table that describes the others, each of which is known from then on.
fn describe_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .execute_batch("CREATE TABLE tables (name TEXT, column TEXT, type TEXT, meaning TEXT)")?;
    for table in tables() {
        for column in table.columns {
            let kind = column.kind.sql_type();
            let row = [table.name, column.name, kind, column.meaning];
            connection.execute("INSERT INTO tables VALUES (?, ?, ?, ?)", row)?;
        }
    }
    Ok(())
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
    use allocsample_profile::{
        Freed, Location, ModuleId, Sample, SampleId, StackId, StackNode, Thread, ThreadId,
    };

    /// Samples of three stacks in two threads, with and without types and frees.
    fn profile() -> Arc<Profile> {
        let mut profile = Profile::default();
        for node in 0..3 {
            profile.stacks.push(StackNode {
                parent: StackId(node),
                location: Location {
                    module: ModuleId::NONE,
                    offset: u64::from(node) + 7,
                },
            });
        }
        for thread in [1, 2, 9] {
            profile.threads.insert(ThreadId(thread), Thread::default());
        }
        for number in 0..4000_u64 {
            let mut sample = Sample {
                id: SampleId(number * 3 + 5),
                size: number * 7919 % 4001,
                thread: ThreadId(1 + number as u32 * 31 % 2),
                stack: StackId(number as u32 * 17 % 4),
                time_ns: number * 10,
                ..Sample::default()
            };
            if number % 3 == 0 {
                let (time_ns, thread) = (number * 10 + number * 7 % 100, ThreadId(2));
                sample.set_freed(Freed { time_ns, thread });
            }
            profile.samples.push(sample);
        }
        profile.end_stacks_without_root();
        Arc::new(profile)
    }

    fn rows(database: &mut Database, sql: &str) -> Vec<String> {
        let answer = database.query(sql, None).expect(sql);
        let mut out = Vec::new();
        answer.write(crate::Format::Csv, &mut out).expect("memory");
        let text = String::from_utf8(out).expect("text");
        text.lines().skip(1).map(str::to_owned).collect()
    }

    /// `+column` keeps SQLite from handing a comparison or an order over to the table.
    #[test]
    fn rows_that_a_table_finds_are_those_that_sqlite_would() {
        let mut database = Database::new(profile()).expect("tables");
        let columns = [
            "sample_id",
            "size",
            "thread_id",
            "stack_id",
            "freed_ns",
            "live",
            "type_id",
        ];
        let values = [
            "-1", "0", "1", "2", "5", "8", "11", "2000", "NULL", "2.0", "1.5", "'x'",
        ];
        for column in columns {
            for comparison in ["=", "<", "<=", ">", ">=", "IS", "<>"] {
                for value in values {
                    let ask = |column: &str| {
                        format!(
                            "SELECT sample_id FROM samples WHERE {column} {comparison} {value} ORDER BY +sample_id"
                        )
                    };
                    let found = rows(&mut database, &ask(column));
                    let expected = rows(&mut database, &ask(&format!("+{column}")));
                    assert_eq!(found, expected, "{column} {comparison} {value}");
                }
            }
            let ask = |column: &str| {
                format!("SELECT {column}, count(*), sum(size) FROM samples GROUP BY {column}")
            };
            let found = rows(&mut database, &ask(column));
            assert_eq!(found, rows(&mut database, &ask(&format!("+{column}"))));
            let plan = format!(
                "EXPLAIN QUERY PLAN SELECT {column}, max(size) FROM samples GROUP BY {column} ORDER BY 2 DESC"
            );
            let plan = rows(&mut database, &plan).join("\n");
            assert!(!plan.contains("FOR GROUP BY"), "{plan}");
            let ask = |column: &str| format!("SELECT {column} FROM samples ORDER BY {column}");
            let found = rows(&mut database, &ask(column));
            assert_eq!(found, rows(&mut database, &ask(&format!("+{column}"))));
        }
        // A text is made a number for a column of numbers, but not for what is computed.
        let text = rows(
            &mut database,
            "SELECT sample_id FROM samples WHERE size = '77'",
        );
        let number = rows(
            &mut database,
            "SELECT sample_id FROM samples WHERE size = 77",
        );
        assert_eq!((text.len(), text), (1, number));
        for (ours, theirs) in [
            (
                "samples.size BETWEEN 100 AND 200 AND thread_id IN (1, 9, NULL)",
                "+samples.size BETWEEN 100 AND 200 AND +thread_id IN (1, 9, NULL)",
            ),
            (
                "function_id IN (SELECT function_id FROM functions WHERE function = '0x7')",
                "+function_id IN (SELECT +function_id FROM functions WHERE +function = '0x7')",
            ),
        ] {
            let ask =
                |condition| format!("SELECT sample_id FROM samples WHERE {condition} ORDER BY 1");
            let found = rows(&mut database, &ask(ours));
            assert!(!found.is_empty());
            assert_eq!(found, rows(&mut database, &ask(theirs)));
        }
    }

    #[test]
    fn joins_find_each_row_by_its_number() {
        let mut database = Database::new(profile()).expect("tables");
        let joined = "SELECT count(*), sum(depth) FROM samples JOIN stacks USING (stack_id)";
        assert_eq!(rows(&mut database, joined), ["4000,7000"]);
        let frames = "SELECT count(*) FROM frames JOIN stacks USING (stack_id) JOIN functions ON frames.function_id = functions.function_id";
        assert_eq!(rows(&mut database, frames), ["7"]);
        let freed =
            "SELECT count(*), sum(samples.time_ns) FROM frees JOIN samples USING (sample_id)";
        assert_eq!(rows(&mut database, freed), ["1334,26673330"]);
        let threads = "SELECT thread_id, count(sample_id) FROM threads LEFT JOIN samples USING (thread_id) GROUP BY thread_id";
        assert_eq!(rows(&mut database, threads), ["1,2000", "2,2000", "9,0"]);
        let unknown = "SELECT count(*) FROM samples JOIN types USING (type_id)";
        assert_eq!(rows(&mut database, unknown), ["0"]);
    }

    #[test]
    fn stacks_are_numbered_only_for_queries_that_read_them() {
        for (sql, is_numbered) in [
            ("SELECT sum(bytes), count(thread_id) FROM samples", false),
            ("SELECT count(lifetime_ns) FROM frees", false),
            ("SELECT count(*) FROM threads, heaps", false),
            ("SELECT max(stack_id) FROM samples", true),
            ("SELECT max(function_id) FROM samples", true),
            ("SELECT * FROM stacks", true),
            ("SELECT count(*) FROM functions", true),
        ] {
            let mut database = Database::new(profile()).expect("tables");
            database.query(sql, None).expect(sql);
            assert_eq!(database.shared.made.has_index(), is_numbered, "{sql}");
        }
    }

    #[test]
    fn nothing_can_be_written() {
        let mut database = Database::new(profile()).expect("tables");
        for sql in [
            "DELETE FROM samples",
            "UPDATE samples SET size = 0",
            "INSERT INTO samples (size) VALUES (1)",
            "INSERT INTO tables (name) VALUES (1)",
            "DROP TABLE samples",
            "CREATE TABLE x (y)",
            "CREATE VIRTUAL TABLE x USING samples",
            "ATTACH 'other' AS y",
            "PRAGMA query_only = 0",
        ] {
            let refused = database.query(sql, None);
            assert!(
                matches!(refused, Err(QueryError::NotReadOnly)),
                "{sql}: {refused:?}"
            );
        }
        assert_eq!(
            rows(&mut database, "SELECT count(*) FROM samples"),
            ["4000"]
        );
    }

    /// Memory for the order of a table is a part of what a query may take.
    #[test]
    fn a_table_too_large_to_be_put_in_order_is_read_from_one_end_to_the_other() {
        let sql = "SELECT sample_id FROM samples WHERE size = 77";
        let mut free = Database::new(profile()).expect("tables");
        let mut bound = Database::new(profile()).expect("tables");
        // Not `allow`: SQLite's limit is the whole process's, other tests' too.
        bound
            .shared
            .most_bytes
            .store(12 * 4000 - 1, Ordering::Relaxed);
        assert_eq!(rows(&mut free, sql), rows(&mut bound, sql));
        let orders = |database: &Database| database.shared.order_count();
        assert_eq!((orders(&free), orders(&bound)), (1, 0));
    }
}
