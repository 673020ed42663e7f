//! The tables: their names, their columns, what each column means, and where its values are in a profile.

use allocsample_profile::event_records::ForkRecord;
use allocsample_profile::{Freed, Gc, Sample, Thread, Type};
use allocsample_report::FrameId;

use crate::column::{Column, Value, integer, nullable, real, text, timestamp, truth};
use crate::index::{Function, number};
use crate::reader::Reader;

/// The version of the tables, in SQL as in Parquet. It grows when a column goes, or is no longer what it was; new columns
/// and tables do not change it.
pub const SCHEMA_VERSION: u32 = 2;

/// One table of a profile.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// What a row is.
    pub meaning: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
    /// How many rows it has.
    pub(crate) rows: fn(&Reader<'_>) -> usize,
}

/// All tables.
pub fn tables() -> &'static [Table] {
    TABLES
}

const fn table(
    name: &'static str,
    meaning: &'static str,
    rows: fn(&Reader<'_>) -> usize,
    columns: &'static [Column],
) -> Table {
    Table {
        name,
        meaning,
        columns,
        rows,
    }
}

const TABLES: &[Table] = &[
    table(
        "process",
        "the process; one row",
        |_| 1,
        &[
            integer("pid", "its number", |it, _| it.profile.process.pid.into()),
            text("executable", "path of the program", |it, _| {
                it.profile.process.executable.as_str().into()
            }),
            text(
                "command",
                "its arguments, with spaces between them",
                |it, _| it.own(it.profile.process.command_line.join(" ")),
            ),
            timestamp(
                "start_unix_ns",
                "when recording began, since 1970",
                |it, _| it.profile.process.start_wall_ns.into(),
            ),
            integer("duration_ns", "length of the profile", |it, _| {
                let process = &it.profile.process;
                process.end_ns.saturating_sub(process.start_ns).into()
            }),
            integer(
                "interval_bytes",
                "mean bytes between two sample points",
                |it, _| it.profile.interval_bytes().into(),
            ),
            integer(
                "exact_bytes",
                "bytes that went through all counters",
                |it, _| it.profile.exact_bytes().into(),
            ),
            integer("lost_samples", "samples that could not be kept", |it, _| {
                it.profile.lost.samples().0.into()
            }),
            integer("lost_bytes", "bytes that they stood for", |it, _| {
                it.profile.lost.samples().1.into()
            }),
            integer("schema_version", "version of these tables", |_, _| {
                SCHEMA_VERSION.into()
            }),
        ],
    ),
    table(
        "samples",
        "a sampled allocation",
        |it| it.profile.samples.len(),
        &[
            integer("sample_id", "its number", |it, row| {
                sample(it, row).id.0.into()
            }),
            integer("time_ns", "when it was allocated", |it, row| {
                it.since_start(sample(it, row).time_ns).into()
            }),
            integer("heap_id", "from which heap", |it, row| {
                sample(it, row).heap.into()
            }),
            integer("thread_id", "by which thread", |it, row| {
                sample(it, row).thread.into()
            }),
            integer("address", "where the block was", |it, row| {
                sample(it, row).address.into()
            }),
            integer("size", "bytes that were asked for", |it, row| {
                sample(it, row).size.into()
            }),
            integer("points", "sample points inside it", |it, row| {
                sample(it, row).points.into()
            }),
            real(
                "bytes",
                "bytes that it stands for: add these up",
                |it, row| it.weight(row).0.value().into(),
            ),
            real(
                "bytes_variance",
                "variance of that: the root of its sum is the standard error",
                |it, row| it.weight(row).0.variance().into(),
            ),
            real("objects", "allocations that it stands for", |it, row| {
                it.weight(row).1.value().into()
            }),
            real("objects_variance", "variance of that", |it, row| {
                it.weight(row).1.variance().into()
            }),
            integer("stack_id", "its stack", |it, row| it.stack_of(row).into()),
            nullable(integer(
                "function_id",
                "the function that it is charged to: the first one outside the allocator",
                |it, row| it.index().charged(it.stack_of(row)).into(),
            )),
            nullable(integer("type_id", "its type", |it, row| {
                it.type_of(&sample(it, row)).into()
            })),
            truth("live", "whether it was alive at the end", |it, row| {
                sample(it, row).is_live().into()
            }),
            nullable(integer("freed_ns", "when it was freed", |it, row| {
                freed(it, row)
                    .map(|freed| it.since_start(freed.time_ns))
                    .into()
            })),
            nullable(integer(
                "lifetime_ns",
                "from its allocation to its free",
                |it, row| lifetime_ns(it, row).into(),
            )),
            nullable(truth(
                "survived",
                "true if it survived its first collection, false if it died young",
                |it, row| {
                    sample(it, row)
                        .outcome()
                        .and_then(|it| it.survived())
                        .into()
                },
            )),
            nullable(integer("content_hash", "hash of its content", |it, row| {
                it.profile.content_hashes.get(&row).copied().into()
            })),
            truth(
                "carried",
                "whether it was alive when the file began: not allocated in it",
                |it, row| sample(it, row).is_carried().into(),
            ),
        ],
    ),
    table(
        "frees",
        "the free of a sampled allocation",
        |it| it.freed().len(),
        &[
            integer("sample_id", "of which sample", |it, row| {
                sample(it, it.freed_row(row)).id.0.into()
            }),
            integer("time_ns", "when", |it, row| {
                freed(it, it.freed_row(row))
                    .map(|freed| it.since_start(freed.time_ns))
                    .into()
            }),
            integer(
                "thread_id",
                "by which thread; 0 if it was not known",
                |it, row| sample(it, it.freed_row(row)).freed_by.into(),
            ),
            real("bytes", "bytes that the sample stands for", |it, row| {
                it.weight(it.freed_row(row)).0.value().into()
            }),
            real("objects", "allocations that it stands for", |it, row| {
                it.weight(it.freed_row(row)).1.value().into()
            }),
            nullable(integer("lifetime_ns", "since its allocation", |it, row| {
                lifetime_ns(it, it.freed_row(row)).into()
            })),
            nullable(integer(
                "stack_id",
                "where; NULL for most: the stack of one in eight is taken",
                |it, row| it.free_stack(row).into(),
            )),
            nullable(integer(
                "function_id",
                "the function of it that lets the block go",
                |it, row| {
                    it.free_stack(row)
                        .and_then(|stack| it.index().charged(stack))
                        .into()
                },
            )),
        ],
    ),
    table(
        "stacks",
        "a stack: the site of allocations",
        |it| it.index().stack_count(),
        &[
            integer("stack_id", "its number", |_, row| (row + 1).into()),
            integer("depth", "how many functions it has", |it, row| {
                it.depth(row).into()
            }),
            nullable(integer(
                "function_id",
                "the function that its allocations are charged to",
                |it, row| it.index().charged(number(row + 1)).into(),
            )),
            text(
                "stack",
                "its functions, outermost first, with ; between them",
                |it, row| it.stack_text(row),
            ),
        ],
    ),
    table(
        "frames",
        "a function on a stack",
        |it| it.frame_count(),
        &[
            integer("stack_id", "of which stack", |it, row| {
                (it.stack_at(row) + 1).into()
            }),
            integer("depth", "0 is the innermost", |it, row| {
                it.depth_at(row).into()
            }),
            integer("function_id", "which function", |it, row| {
                let frame = it.frame_at(row);
                frame.map(|frame| it.index().function_of(frame)).into()
            }),
            integer(
                "call_id",
                "where in it the next one is called",
                |it, row| it.frame_at(row).map(call_id).into(),
            ),
        ],
    ),
    table(
        "calls",
        "a place in a function from which it calls",
        |it| it.index().calls.len(),
        &[
            integer("call_id", "its number", |it, row| {
                call_id(it.index().calls[row]).into()
            }),
            integer("function_id", "which function", |it, row| {
                it.index().function_of(it.index().calls[row]).into()
            }),
            nullable(text("file", "source file", |it, row| {
                it.index().call(row).file.as_deref().into()
            })),
            nullable(integer("line", "line in that", |it, row| {
                Some(it.index().call(row).line)
                    .filter(|&line| line != 0)
                    .into()
            })),
        ],
    ),
    table(
        "functions",
        "a function of a module",
        |it| it.index().functions.len(),
        &[
            integer("function_id", "its number", |_, row| (row + 1).into()),
            text(
                "function",
                "its name, or module+0x123 if it has none",
                |it, row| function(it, row).name.as_str().into(),
            ),
            text("module", "file name of its module", |it, row| {
                function(it, row).module.as_str().into()
            }),
            nullable(text(
                "file",
                "source file in which it was first met",
                |it, row| function(it, row).file.as_deref().into(),
            )),
        ],
    ),
    table(
        "types",
        "a type of objects, as a virtual machine named it",
        |it| it.types().len(),
        &[
            nullable(integer("type_id", "its number", |_, row| (row + 1).into())),
            integer("heap_id", "the heap's id", |it, row| {
                it.types()[row].0.into()
            }),
            text("type", "its name", |it, row| {
                described(it, row).map(|it| it.name.as_str()).into()
            }),
            text("detail", "what else is known of it", |it, row| {
                described(it, row).map(|it| it.detail.as_str()).into()
            }),
        ],
    ),
    table(
        "threads",
        "a thread",
        |it| it.threads().len(),
        &[
            integer("thread_id", "our number of it", |it, row| {
                it.threads()[row].into()
            }),
            integer("tid", "the kernel's", |it, row| {
                thread(it, row).map(|it| it.tid).into()
            }),
            text("thread", "its name", |it, row| {
                thread(it, row).map(|it| it.name.as_str()).into()
            }),
            integer("start_ns", "when it was first seen", |it, row| {
                thread(it, row)
                    .map(|thread| it.since_start(thread.start_ns))
                    .into()
            }),
            nullable(integer("end_ns", "when it ended", |it, row| {
                thread(it, row)
                    .and_then(|thread| Some(it.since_start(thread.end_ns?)))
                    .into()
            })),
            integer(
                "exact_bytes",
                "bytes that went through its counter",
                |it, row| thread(it, row).map(|it| it.exact_bytes).into(),
            ),
            integer(
                "muted_bytes",
                "bytes allocated while it was muted",
                |it, row| thread(it, row).map(|it| it.muted_bytes).into(),
            ),
        ],
    ),
    table(
        "heaps",
        "an allocator under observation",
        |it| it.heaps().len(),
        &[
            integer("heap_id", "its number", |it, row| it.heaps()[row].id.into()),
            text("heap", "its name", |it, row| {
                it.heaps()[row].name.as_str().into()
            }),
            nullable(text("kind", "malloc, nursery or external", |it, row| {
                it.heaps()[row].kind.as_deref().into()
            })),
            integer(
                "exact_bytes",
                "bytes that went through it while sampled",
                |it, row| it.heaps()[row].exact_bytes.into(),
            ),
            real(
                "bytes_allowance",
                "bytes that one more block would stand for: the last argument of limit_low and limit_high",
                |it, row| it.heaps()[row].allowance.bytes.into(),
            ),
            real(
                "objects_allowance",
                "allocations that it would stand for",
                |it, row| it.heaps()[row].allowance.objects.into(),
            ),
        ],
    ),
    table(
        "gc",
        "a collection",
        |it| it.profile.vm.gcs.len(),
        &[
            integer("gc_id", "its number", |_, row| (row + 1).into()),
            integer("heap_id", "the heap's id", |it, row| {
                gc(it, row).heap.into()
            }),
            text("kind", "minor or major", |it, row| {
                it.own(format!("{:?}", gc(it, row).kind).to_lowercase())
            }),
            integer("begin_ns", "when it began", |it, row| {
                it.since_start(gc(it, row).begin_ns).into()
            }),
            integer("end_ns", "when it ended", |it, row| {
                it.since_start(gc(it, row).end_ns).into()
            }),
            integer("duration_ns", "how long it took", |it, row| {
                gc(it, row)
                    .end_ns
                    .saturating_sub(gc(it, row).begin_ns)
                    .into()
            }),
        ],
    ),
    table(
        "gc_statistics",
        "what a virtual machine counted in a collection",
        |it| it.gc_statistics().len(),
        &[
            integer("gc_id", "in which collection", |it, row| {
                (it.gc_statistics()[row].0 + 1).into()
            }),
            nullable(text("statistic", "what", |it, row| {
                it.gc_statistic(row).0.map(|it| it.name.as_str()).into()
            })),
            nullable(text("unit", "in which unit", |it, row| {
                it.gc_statistic(row).0.map(|it| it.unit.as_str()).into()
            })),
            integer("value", "how many", |it, row| it.gc_statistic(row).1.into()),
        ],
    ),
    table(
        "markers",
        "a named span of time",
        |it| it.profile.vm.markers.len(),
        &[
            text("marker", "its name", |it, row| {
                it.profile.vm.markers[row].name.as_str().into()
            }),
            integer("heap_id", "the heap's id", |it, row| {
                it.profile.vm.markers[row].heap.into()
            }),
            text("kind", "span or phase", |it, row| {
                match it.profile.vm.markers[row].is_phase {
                    true => "phase".into(),
                    false => "span".into(),
                }
            }),
            integer("begin_ns", "when it began", |it, row| {
                it.since_start(it.profile.vm.markers[row].begin_ns).into()
            }),
            integer("end_ns", "when it ended", |it, row| {
                it.since_start(it.profile.vm.markers[row].end_ns).into()
            }),
        ],
    ),
    table(
        "forks",
        "a child process that was forked",
        |it| it.profile.events.count::<ForkRecord>(),
        &[
            integer("time_ns", "when", |it, row| {
                it.since_start(fork(it, row).time_ns).into()
            }),
            integer("child_pid", "the pid of the child", |it, row| {
                fork(it, row).child_pid.into()
            }),
        ],
    ),
    table(
        "counters",
        "a reading of a quantity",
        |it| it.profile.resident_bytes.len() + it.profile.vm.values.len(),
        &[
            integer("time_ns", "when", |it, row| {
                it.since_start(it.reading(row).time_ns).into()
            }),
            nullable(integer(
                "heap_id",
                "the heap's id; none for the process",
                |it, row| it.reading(row).heap.into(),
            )),
            nullable(text(
                "counter",
                "of what; `resident set` is the kernel's figure",
                |it, row| it.reading(row).name.into(),
            )),
            nullable(text("unit", "in which unit", |it, row| {
                it.reading(row).unit.into()
            })),
            integer("value", "how much", |it, row| it.reading(row).value.into()),
        ],
    ),
    table(
        "modules",
        "an executable or shared object",
        |it| it.profile.modules.len(),
        &[
            integer("module_id", "its number", |_, row| (row + 1).into()),
            text("module", "its file's name", |it, row| {
                it.profile.modules[row].name().into()
            }),
            text("path", "its file", |it, row| {
                it.profile.modules[row].path.as_str().into()
            }),
            nullable(text("build_id", "in hexadecimal digits", |it, row| {
                let bytes = &it.profile.modules[row].build_id;
                let text = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                match bytes.is_empty() {
                    true => Value::Null,
                    false => it.own(text),
                }
            })),
            integer("start", "where it was mapped", |it, row| {
                it.profile.modules[row].start.into()
            }),
            integer("end", "first address after it", |it, row| {
                it.profile.modules[row].end.into()
            }),
        ],
    ),
    table(
        "ticks",
        "a sample of time (`run --time-hz`)",
        |it| it.profile.ticks.len(),
        &[
            integer("time_ns", "when", |it, row| {
                it.since_start(it.profile.ticks[row].time_ns).into()
            }),
            integer(
                "thread_id",
                "the thread that was found at work",
                |it, row| it.profile.ticks[row].thread.into(),
            ),
            integer(
                "cpu_ns",
                "time of a processor that it stands for: add these up",
                |it, row| it.profile.ticks[row].cpu_ns.into(),
            ),
            integer("stack_id", "its stack", |it, row| it.tick_stack(row).into()),
            nullable(integer(
                "function_id",
                "the innermost function of that",
                |it, row| {
                    let innermost = it.index().innermost(it.profile, it.tick_stack(row));
                    innermost.into()
                },
            )),
        ],
    ),
    table(
        "coverage",
        "anonymous memory of the process near its peak, by owner; no rows if it was not read",
        |it| it.coverage().len(),
        &[
            text(
                "owner",
                "the sampled heaps, allocsample itself, or whoever has the rest",
                |it, row| it.coverage()[row].owner.as_str().into(),
            ),
            truth("is_sampled", "true for the sampled heaps", |it, row| {
                it.coverage()[row].is_sampled.into()
            }),
            real("bytes", "how much", |it, row| {
                it.coverage()[row].bytes.into()
            }),
            nullable(text(
                "likely_owner",
                "whose it most likely is, where that is not known",
                |it, row| it.coverage()[row].likely_owner.as_deref().into(),
            )),
        ],
    ),
    table(
        "mappings",
        "a call that maps memory or makes it usable: mmap and its kin, mprotect of reserved memory, and the start of a thread",
        |it| it.mappings().len(),
        &[
            integer("time_ns", "when", |it, row| {
                it.since_start(it.mapping(row).mapped.time_ns).into()
            }),
            nullable(integer(
                "unmapped_ns",
                "when the last of it was unmapped; none if some was mapped at the end",
                |it, row| {
                    let unmapped_ns = it.mappings()[row].unmapped_ns;
                    unmapped_ns.map(|it_ns| it.since_start(it_ns)).into()
                },
            )),
            integer(
                "thread_id",
                "the calling thread; 0 if it is not known",
                |it, row| it.mapping(row).mapped.thread.into(),
            ),
            text(
                "call",
                "mmap, mremap, sbrk, shmat, mprotect or pthread_create; allocsample for the agent's own",
                |it, row| it.mapping(row).mapped.change.name().into(),
            ),
            integer(
                "address",
                "where it begins; of pthread_create, the descriptor of the thread",
                |it, row| it.mapping(row).mapped.start.into(),
            ),
            integer(
                "bytes",
                "its length; of pthread_create, that of the stack",
                |it, row| it.mapping(row).mapped.bytes.into(),
            ),
            truth("is_anonymous", "whether it maps no file", |it, row| {
                it.mapping(row).is_anonymous().into()
            }),
            integer("protection", "rights as mmap takes them", |it, row| {
                u32::from(it.mapping(row).mapped.protection).into()
            }),
            integer("flags", "flags as mmap takes them", |it, row| {
                it.mapping(row).mapped.flags.into()
            }),
            integer("stack_id", "its stack; 0 if it has none", |it, row| {
                it.mapping_stack(row).into()
            }),
            nullable(integer(
                "function_id",
                "the innermost function of that",
                |it, row| {
                    let innermost = it.index().innermost(it.profile, it.mapping_stack(row));
                    innermost.into()
                },
            )),
        ],
    ),
    table(
        "residency",
        "resident memory at one reading, by whose it is; the rows of a reading add up to what the kernel counts",
        |it| it.residency().len(),
        &[
            integer("time_ns", "when it was read", |it, row| {
                it.since_start(it.residency()[row].0).into()
            }),
            text(
                "account",
                "whose it is, as `allocsample memory` has it",
                |it, row| it.residency()[row].1.account.name().into(),
            ),
            text("name", "the same in words", |it, row| {
                it.residency()[row].1.name.as_str().into()
            }),
            real("resident_bytes", "what is resident", |it, row| {
                it.residency()[row].1.resident_bytes.into()
            }),
            real(
                "anonymous_bytes",
                "the part of it that belongs to no file",
                |it, row| it.residency()[row].1.anonymous_bytes.into(),
            ),
        ],
    ),
    table(
        "allocators",
        "a module with an allocator of its own, past malloc",
        |it| it.allocators().len(),
        &[
            text("module", "its file", |it, row| {
                it.allocators()[row].0.as_str().into()
            }),
            text("allocator", "which allocator it has", |it, row| {
                it.allocators()[row].1.as_str().into()
            }),
        ],
    ),
];

#[inline(always)]
fn sample(it: &Reader<'_>, row: usize) -> Sample {
    it.profile.samples.at(row)
}

#[inline(always)]
fn freed(it: &Reader<'_>, row: usize) -> Option<Freed> {
    sample(it, row).freed()
}

fn lifetime_ns(it: &Reader<'_>, row: usize) -> Option<u64> {
    let sample = sample(it, row);
    Some(sample.freed_ns?.get().saturating_sub(sample.time_ns))
}

fn call_id(frame: FrameId) -> u32 {
    number(frame.index() + 1)
}

fn function<'t>(it: &Reader<'t>, row: usize) -> &'t Function {
    &it.index().functions[row]
}

fn described<'t>(it: &Reader<'t>, row: usize) -> Option<&'t Type> {
    it.profile.vm.types.get(&it.types()[row])
}

fn thread<'t>(it: &Reader<'t>, row: usize) -> Option<&'t Thread> {
    it.profile.threads.get(&it.threads()[row])
}

fn gc<'t>(it: &Reader<'t>, row: usize) -> &'t Gc {
    &it.profile.vm.gcs[row]
}

fn fork(it: &Reader<'_>, row: usize) -> ForkRecord {
    let fork = it.profile.events.at(row);
    fork.unwrap_or(ForkRecord {
        time_ns: it.profile.process.start_ns,
        child_pid: 0,
    })
}
