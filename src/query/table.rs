//! The tables: their names, their columns, what each column means.

use allocsample_profile::Profile;

use crate::block::Sink;
use crate::index::Index;
use crate::rows;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Integer,
    /// A number: the estimates.
    Real,
    /// Text.
    Text,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether a row may have none.
    pub is_nullable: bool,
    /// What it means.
    pub meaning: &'static str,
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Not known, or there is none.
    Null,
    /// Of an integer column. Numbers of 64 bits that have no sign keep their bits.
    Integer(i64),
    /// Of a real column.
    Real(f64),
    /// Of a text column.
    Text(&'a str),
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Integer(number.cast_signed())
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Integer(i64::from(number))
    }
}

impl From<bool> for Value<'_> {
    fn from(truth: bool) -> Self {
        Self::Integer(i64::from(truth))
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One table of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// What a row is.
    pub meaning: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
    pub(crate) source: Source,
}

/// Which function makes the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Process,
    Samples,
    Frees,
    Stacks,
    Frames,
    Calls,
    Functions,
    Types,
    Threads,
    Heaps,
    Gc,
    GcStatistics,
    Markers,
    Counters,
    Modules,
    Ticks,
    Coverage,
}

impl Table {
    /// Hands all rows to `sink`.
    pub(crate) fn rows<E>(
        &self,
        profile: &Profile,
        index: &Index<'_>,
        sink: &mut Sink<'_, E>,
    ) -> Result<(), E> {
        match self.source {
            Source::Process => rows::process(profile, sink),
            Source::Samples => rows::samples(profile, index, sink),
            Source::Frees => rows::frees(profile, index, sink),
            Source::Stacks => rows::stacks(index, sink),
            Source::Frames => rows::frames(index, sink),
            Source::Calls => rows::calls(index, sink),
            Source::Functions => rows::functions(index, sink),
            Source::Types => rows::types(profile, index, sink),
            Source::Threads => rows::threads(profile, sink),
            Source::Heaps => rows::heaps(profile, sink),
            Source::Gc => rows::gc(profile, sink),
            Source::GcStatistics => rows::gc_statistics(profile, sink),
            Source::Markers => rows::markers(profile, sink),
            Source::Counters => rows::counters(profile, sink),
            Source::Modules => rows::modules(profile, sink),
            Source::Ticks => rows::ticks(profile, index, sink),
            Source::Coverage => rows::coverage(profile, sink),
        }
    }
}

/// All tables.
pub fn tables() -> &'static [Table] {
    TABLES
}

const fn integer(name: &'static str, meaning: &'static str) -> Column {
    column(name, Kind::Integer, meaning)
}

const fn real(name: &'static str, meaning: &'static str) -> Column {
    column(name, Kind::Real, meaning)
}

const fn text(name: &'static str, meaning: &'static str) -> Column {
    column(name, Kind::Text, meaning)
}

const fn column(name: &'static str, kind: Kind, meaning: &'static str) -> Column {
    Column {
        name,
        kind,
        is_nullable: false,
        meaning,
    }
}

/// A column that not every row has a value for.
const fn nullable(column: Column) -> Column {
    Column {
        is_nullable: true,
        ..column
    }
}

const fn table(
    name: &'static str,
    source: Source,
    meaning: &'static str,
    columns: &'static [Column],
) -> Table {
    Table {
        name,
        meaning,
        columns,
        source,
    }
}

const TABLES: &[Table] = &[
    table(
        "process",
        Source::Process,
        "the process; one row",
        &[
            integer("pid", "its number"),
            text("executable", "path of the program"),
            text("command", "its arguments, with spaces between them"),
            integer("start_unix_ns", "when recording began, since 1970"),
            integer("duration_ns", "length of the profile"),
            integer("interval_bytes", "mean bytes between two sample points"),
            integer("exact_bytes", "bytes that went through all counters"),
            integer("lost_samples", "samples that could not be kept"),
            integer("lost_bytes", "bytes that they stood for"),
        ],
    ),
    table(
        "samples",
        Source::Samples,
        "a sampled allocation",
        &[
            integer("sample_id", "its number"),
            integer("time_ns", "when it was allocated"),
            integer("heap_id", "from which heap"),
            integer("thread_id", "by which thread"),
            integer("address", "where the block was"),
            integer("size", "bytes that were asked for"),
            integer("points", "sample points inside it"),
            real("bytes", "bytes that it stands for: add these up"),
            real(
                "bytes_variance",
                "variance of that: the root of its sum is the standard error",
            ),
            real("objects", "allocations that it stands for"),
            real("objects_variance", "variance of that"),
            integer("stack_id", "its stack"),
            nullable(integer(
                "function_id",
                "the function that it is charged to: the first one outside the allocator",
            )),
            nullable(integer("type_id", "its type")),
            integer("live", "1 if it was alive at the end, otherwise 0"),
            nullable(integer("freed_ns", "when it was freed")),
            nullable(integer("lifetime_ns", "from its allocation to its free")),
            nullable(integer(
                "survived",
                "1 if it survived its first collection, 0 if it died young",
            )),
            nullable(integer("content_hash", "hash of its content")),
            integer(
                "carried",
                "1 if it was alive when the file began: not allocated in it; otherwise 0",
            ),
        ],
    ),
    table(
        "frees",
        Source::Frees,
        "the free of a sampled allocation",
        &[
            integer("sample_id", "of which sample"),
            integer("time_ns", "when"),
            integer("thread_id", "by which thread; 0 if it was not known"),
            real("bytes", "bytes that the sample stands for"),
            real("objects", "allocations that it stands for"),
            nullable(integer("lifetime_ns", "since its allocation")),
            nullable(integer(
                "stack_id",
                "where; NULL for most: the stack of one in eight is taken",
            )),
            nullable(integer(
                "function_id",
                "the function of it that lets the block go",
            )),
        ],
    ),
    table(
        "stacks",
        Source::Stacks,
        "a stack: the site of allocations",
        &[
            integer("stack_id", "its number"),
            integer("depth", "how many functions it has"),
            nullable(integer(
                "function_id",
                "the function that its allocations are charged to",
            )),
            text(
                "stack",
                "its functions, outermost first, with ; between them",
            ),
        ],
    ),
    table(
        "frames",
        Source::Frames,
        "a function on a stack",
        &[
            integer("stack_id", "of which stack"),
            integer("depth", "0 is the innermost"),
            integer("function_id", "which function"),
            integer("call_id", "where in it the next one is called"),
        ],
    ),
    table(
        "calls",
        Source::Calls,
        "a place in a function from which it calls",
        &[
            integer("call_id", "its number"),
            integer("function_id", "which function"),
            nullable(text("file", "source file")),
            nullable(integer("line", "line in that")),
        ],
    ),
    table(
        "functions",
        Source::Functions,
        "a function of a module",
        &[
            integer("function_id", "its number"),
            text("function", "its name, or module+0x123 if it has none"),
            text("module", "file name of its module"),
            nullable(text("file", "source file in which it was first met")),
        ],
    ),
    table(
        "types",
        Source::Types,
        "a type of objects, as a virtual machine named it",
        &[
            nullable(integer("type_id", "its number")),
            integer("heap_id", "of which heap"),
            text("type", "its name"),
            text("detail", "what else is known of it"),
        ],
    ),
    table(
        "threads",
        Source::Threads,
        "a thread",
        &[
            integer("thread_id", "our number of it"),
            integer("tid", "the kernel's"),
            text("thread", "its name"),
            integer("start_ns", "when it was first seen"),
            nullable(integer("end_ns", "when it ended")),
            integer("exact_bytes", "bytes that went through its counter"),
            integer("muted_bytes", "bytes allocated while it was muted"),
        ],
    ),
    table(
        "heaps",
        Source::Heaps,
        "an allocator under observation",
        &[
            integer("heap_id", "its number"),
            text("heap", "its name"),
            nullable(text("kind", "malloc, nursery or external")),
            integer("exact_bytes", "bytes that went through it while sampled"),
            real(
                "bytes_allowance",
                "bytes that one more block would stand for: the last argument of limit_low and limit_high",
            ),
            real("objects_allowance", "allocations that it would stand for"),
        ],
    ),
    table(
        "gc",
        Source::Gc,
        "a collection",
        &[
            integer("gc_id", "its number"),
            integer("heap_id", "of which heap"),
            text("kind", "minor or major"),
            integer("begin_ns", "when it began"),
            integer("end_ns", "when it ended"),
            integer("duration_ns", "how long it took"),
        ],
    ),
    table(
        "gc_statistics",
        Source::GcStatistics,
        "what a virtual machine counted in a collection",
        &[
            integer("gc_id", "in which collection"),
            nullable(text("statistic", "what")),
            nullable(text("unit", "in which unit")),
            integer("value", "how many"),
        ],
    ),
    table(
        "markers",
        Source::Markers,
        "a named span of time",
        &[
            text("marker", "its name"),
            integer("heap_id", "of which heap"),
            text("kind", "span or phase"),
            integer("begin_ns", "when it began"),
            integer("end_ns", "when it ended"),
        ],
    ),
    table(
        "counters",
        Source::Counters,
        "a reading of a quantity",
        &[
            integer("time_ns", "when"),
            nullable(integer("heap_id", "of which heap; none for the process")),
            nullable(text(
                "counter",
                "of what; `resident set` is the kernel's figure",
            )),
            nullable(text("unit", "in which unit")),
            integer("value", "how much"),
        ],
    ),
    table(
        "modules",
        Source::Modules,
        "an executable or shared object",
        &[
            integer("module_id", "its number"),
            text("module", "its file's name"),
            text("path", "its file"),
            nullable(text("build_id", "in hexadecimal digits")),
            integer("start", "where it was mapped"),
            integer("end", "first address after it"),
        ],
    ),
    table(
        "ticks",
        Source::Ticks,
        "a sample of time (`run --time-hz`)",
        &[
            integer("time_ns", "when"),
            integer("thread_id", "the thread that was found at work"),
            integer(
                "cpu_ns",
                "time of a processor that it stands for: add these up",
            ),
            integer("stack_id", "its stack"),
            nullable(integer("function_id", "the innermost function of that")),
        ],
    ),
    table(
        "coverage",
        Source::Coverage,
        "anonymous memory of the process near its peak, by who has it; no rows if nobody read it",
        &[
            text("owner", "the sampled heaps, or whoever has the rest"),
            integer("is_sampled", "1 for the sampled heaps"),
            real("bytes", "how much"),
            nullable(text(
                "likely_owner",
                "whose it most likely is, where that is not known",
            )),
        ],
    ),
];
