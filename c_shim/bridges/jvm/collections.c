/* Detects full collections. JVMTI reports GC pauses but not their kind, so the bridge reads HotSpot's own state at the start and
 * the end of every pause.
 *
 * Stop-the-world collectors (Serial, Parallel, and the full collections of G1) increment a performance counter for every full
 * collection. Concurrent collectors examine only the objects that were allocated before marking started, and treat later ones as
 * live. For these the bridge detects the pause in which marking starts and the pause in which it ends:
 *
 *   G1          enables the SATB barrier in every Java thread while it marks. The interpreter's store code contains the offset
 *               of that flag.
 *   Shenandoah  sets a bit in every thread's GC state byte.
 *   ZGC         changes the good colours of its pointers, which it publishes for debuggers, when marking starts and again when
 *               the dead objects are known (without generations: its phase). Generational ZGC examines only the old generation.
 *
 * This state changes only inside pauses. If it cannot be found or looks unexpected, every pause counts as a minor collection; this
 * is the case for generational Shenandoah, and under -XX:-UsePerfData for all collectors but ZGC. */
#define _GNU_SOURCE
#include "collections.h"
#include "kit/foreign.h"
#include "layout.h"

#include <dlfcn.h>
#include <string.h>

/* ---- performance counters (perfMemory.hpp; format version 2, used since JDK 5) ---- */

enum { PERF_MAGIC = (int32_t)0xc0c0feca, PERF_LONG = 'J', PERF_BYTE = 'B' };
struct perf_prologue {
    int32_t magic;
    uint8_t byte_order, major, minor, is_accessible;
    int32_t used, overflow;
    int64_t modified;
    int32_t first, entries;
};
struct perf_entry {
    int32_t length, name, vector;
    uint8_t type, flags, units, variability;
    int32_t data;
};

#define COLLECTORS 4
struct counter {
    uintptr_t at; /* 0: none */
    uint64_t last;
};

/* How to tell that the collector is marking. */
enum marking { MARKING_UNKNOWN, MARKING_FLAG, MARKING_COLOURS, MARKING_PHASE, MARKING_PHASE_X };

static struct counter full[COLLECTORS], steps[COLLECTORS];
static enum marking marking;
static int64_t layout[JVM_FIELDS];
static _Atomic(bool) is_ready;
/* The cause of the current collection, as a text that has room for so many bytes; 0: not known. */
#define CAUSE_BYTES 80
static uintptr_t cause_at;
/* MARKING_FLAG: offset of the flag in a JavaThread, and its bits. */
static uint8_t flag_at, flag_bits;

/* The current pause, and the current marking. Only the thread that runs the pause accesses these. */
static uint64_t pause_begin_ns, marking_since_ns;
static bool has_looked, is_marking, is_marked;
/* MARKING_COLOURS. Young collections of ZGC keep tagged objects alive, so a sampled object is found dead only after it has been
 * promoted. Promotion takes up to 16 young collections, and one more may still be relocating. These are the start times of the
 * last 17. A full collection on request first promotes all young objects, by a young collection of its own. */
#define YOUNG_COLLECTIONS 17
static uint64_t young_ns[YOUNG_COLLECTIONS];
static size_t young_count;
static uintptr_t young_mark, old_mark;
static bool old_remap;

static int32_t text(uintptr_t from, char *to, size_t room)
{
    for (size_t used = 0; used + 1 < room; used++) {
        if (!foreign_copy(from + used, to + used, 1))
            return -1;
        if (to[used] == 0)
            return (int32_t)used;
    }
    return -1;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* The collectors whose counters exist. */
struct perf_names {
    bool has_g1, has_shenandoah;
};

static bool is_any(const char *name, const char *const *names)
{
    while (*names != NULL && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

static void keep_collector(unsigned number, const char *name, struct counter found[COLLECTORS], struct perf_names *names)
{
    /* Names in JDK 11. */
    static const char *const full_in_11[] = {"MSC", "PSMarkSweep", "PSParallelCompact", "CMS",
                                             "G1 stop-the-world full collections", NULL};
    static const char *const steps_in_11[] = {"CMS stop-the-world phases", "G1 stop-the-world phases", NULL};
    names->has_g1 |= strncmp(name, "G1 ", 3) == 0;
    names->has_shenandoah |= strncmp(name, "Shenandoah ", 11) == 0;
    if (ends_with(name, " full collection pauses") || is_any(name, full_in_11))
        full[number] = found[number];
    else if (ends_with(name, " concurrent cycle pauses") || ends_with(name, " major collection pauses") ||
             strcmp(name, "Shenandoah full") == 0 || is_any(name, steps_in_11))
        steps[number] = found[number];
}

static void read_counters(struct perf_names *names)
{
    static const char prefix[] = "sun.gc.collector.";
    uintptr_t start;
    struct perf_prologue prologue;
    struct counter found[COLLECTORS] = {0};
    char kinds[COLLECTORS][64] = {{0}};
    if (layout[STATIC_PERF_START] == JVM_HAS_NO)
        return;
    start = *(const uintptr_t *)layout[STATIC_PERF_START];
    if (start == 0 || !foreign_copy(start, &prologue, sizeof prologue) || prologue.magic != PERF_MAGIC ||
        prologue.major != 2)
        return;
    uintptr_t at = start + (uintptr_t)prologue.first;
    for (int32_t i = 0; i < prologue.entries; i++) {
        struct perf_entry entry;
        char name[64];
        if (!foreign_copy(at, &entry, sizeof entry) || entry.length < (int32_t)sizeof entry)
            return;
        bool is_named = text(at + (uintptr_t)entry.name, name, sizeof name) > 0;
        if (is_named && strcmp(name, "sun.gc.cause") == 0 && entry.type == PERF_BYTE && entry.vector >= CAUSE_BYTES)
            cause_at = at + (uintptr_t)entry.data;
        if (is_named && strncmp(name, prefix, sizeof prefix - 1) == 0) {
            unsigned number = (unsigned)name[sizeof prefix - 1] - '0';
            const char *what = name + sizeof prefix;
            if (number < COLLECTORS && strcmp(what, ".name") == 0 && entry.type == PERF_BYTE)
                (void)text(at + (uintptr_t)entry.data, kinds[number], sizeof kinds[number]);
            else if (number < COLLECTORS && strcmp(what, ".invocations") == 0 && entry.type == PERF_LONG)
                found[number].at = at + (uintptr_t)entry.data;
        }
        at += (uintptr_t)entry.length;
    }
    for (unsigned number = 0; number < COLLECTORS; number++)
        keep_collector(number, kinds[number], found, names);
}

/* Returns whether any of the counters has changed since the last call. */
static bool have_counted(struct counter counters[COLLECTORS])
{
    bool has_counted = false;
    for (size_t i = 0; i < COLLECTORS; i++) {
        uint64_t now;
        if (counters[i].at == 0 || !foreign_copy(counters[i].at, &now, sizeof now))
            continue;
        has_counted |= now != counters[i].last;
        counters[i].last = now;
    }
    return has_counted;
}

/* ---- concurrent marking ---- */

#if defined(__x86_64__)

/* Searches the interpreter for the first instruction of its store barrier: `cmpb $0, offset(%r15)` (G1) or
 * `testb $MARKING, offset(%r15)` (Shenandoah). %r15 holds the thread. */
static void find_flag(const struct perf_names *names)
{
    enum { PIECE = 4096, LENGTH = 5, LEAST = 8, SHENANDOAH_MARKING = 2 };
    static const uint8_t of_g1[3] = {0x41, 0x80, 0x7f}, of_shenandoah[3] = {0x41, 0xf6, 0x47};
    const uint8_t *opcode = names->has_g1 ? of_g1 : of_shenandoah;
    uint8_t operand = names->has_g1 ? 0 : SHENANDOAH_MARKING;
    uint8_t code[PIECE], at = 0;
    unsigned times = 0;
    if (layout[STATIC_INTERPRETER] == JVM_HAS_NO || layout[INTERPRETER_BEGIN] == JVM_HAS_NO ||
        layout[INTERPRETER_LENGTH] == JVM_HAS_NO)
        return;
    uintptr_t queue = *(const uintptr_t *)layout[STATIC_INTERPRETER], begin;
    int32_t length;
    if (!foreign_copy(queue + (uintptr_t)layout[INTERPRETER_BEGIN], &begin, sizeof begin) ||
        !foreign_copy(queue + (uintptr_t)layout[INTERPRETER_LENGTH], &length, sizeof length))
        return;
    for (int32_t from = 0; from + LENGTH <= length; from += PIECE - LENGTH + 1) {
        int32_t bytes = length - from < PIECE ? length - from : PIECE;
        if (!foreign_copy(begin + (uintptr_t)from, code, (size_t)bytes))
            return;
        for (int32_t i = 0; i + LENGTH <= bytes; i++) {
            if (memcmp(code + i, opcode, sizeof of_g1) != 0 || code[i + 4] != operand)
                continue;
            if (times++ > 0 && code[i + 3] != at)
                return; /* two different offsets: unknown code */
            at = code[i + 3];
        }
    }
    if (times < LEAST || at >= 128)
        return;
    flag_at = at;
    flag_bits = names->has_g1 ? 1 : SHENANDOAH_MARKING;
    marking = MARKING_FLAG;
}

#else

static void find_flag(const struct perf_names *names)
{
    (void)names;
}

#endif

/* Reads the variable that a field of the debugger table points to. */
static bool read_of_table(enum jvm_field table, enum jvm_field field, void *value, size_t bytes)
{
    uintptr_t at;
    return foreign_copy(*(const uintptr_t *)layout[table] + (uintptr_t)layout[field], &at, sizeof at) &&
           foreign_copy(at, value, bytes);
}

/* JDK 21 to 23 have a ZGC with generations and one without. Only the one that is used has colours or phases that change. */
static bool is_without_generations(void)
{
    uintptr_t mark_good = 0;
    return layout[STATIC_X] != JVM_HAS_NO && *(const uintptr_t *)layout[STATIC_X] != 0 && layout[X_PHASE] != JVM_HAS_NO &&
           read_of_table(STATIC_Z, Z_MARK_GOOD, &mark_good, sizeof mark_good) && mark_good == 0;
}

static void find_colours(void)
{
    if (layout[STATIC_Z] == JVM_HAS_NO || *(const uintptr_t *)layout[STATIC_Z] == 0)
        return;
    if (layout[Z_PHASE] != JVM_HAS_NO)
        marking = MARKING_PHASE;
    else if (layout[Z_LOAD_GOOD] != JVM_HAS_NO && layout[Z_MARK_GOOD] != JVM_HAS_NO)
        marking = is_without_generations() ? MARKING_PHASE_X : MARKING_COLOURS;
}

/* The thread list does not change in a pause. */
static bool find_first_thread(uintptr_t *thread)
{
    uintptr_t threads;
    uint32_t count;
    if (layout[STATIC_FIRST_THREAD] != JVM_HAS_NO) {
        *thread = *(const uintptr_t *)layout[STATIC_FIRST_THREAD];
        return *thread != 0;
    }
    if (layout[STATIC_THREADS] == JVM_HAS_NO || layout[THREADS_LENGTH] == JVM_HAS_NO || layout[THREADS_FIRST] == JVM_HAS_NO)
        return false;
    uintptr_t list = *(const uintptr_t *)layout[STATIC_THREADS];
    return foreign_copy(list + (uintptr_t)layout[THREADS_LENGTH], &count, sizeof count) && count != 0 &&
           foreign_copy(list + (uintptr_t)layout[THREADS_FIRST], &threads, sizeof threads) &&
           foreign_copy(threads, thread, sizeof *thread);
}

/* Reads the flag of the first Java thread. All threads have the same value. */
static bool read_flag(bool *is_set)
{
    uintptr_t thread;
    uint8_t flag;
    if (!find_first_thread(&thread) || !foreign_copy(thread + flag_at, &flag, sizeof flag))
        return false;
    *is_set = (flag & flag_bits) != 0;
    return true;
}

/* Whether ZGC promotes all young objects before it marks, in the current collection. By the JVM's own list of causes. */
static bool is_on_request(void)
{
    static const char *const causes[] = {"System.gc()", "JvmtiEnv ForceGarbageCollection", "Diagnostic Command",
                                         "Heap Dump Initiated GC", "Heap Inspection Initiated GC",
                                         "Metadata GC Clear Soft References", "Allocation Stall", NULL};
    char cause[CAUSE_BYTES];
    if (cause_at == 0 || !foreign_copy(cause_at, cause, sizeof cause))
        return false;
    cause[sizeof cause - 1] = 0;
    return is_any(cause, causes);
}

/* Pointer colours of generational ZGC. Each generation has two marking bits, one of them good at a time. One of four remapping bits is
 * set; it encodes the parity of both generations' relocations. */
enum { Z_MARKED_YOUNG = 0x300, Z_MARKED_OLD = 0xc00, Z_REMAPPED_BY_OLD = 0xc000 };

static bool read_colours(uint64_t *since_ns, bool *is_set)
{
    uintptr_t load_good, mark_good;
    if (!read_of_table(STATIC_Z, Z_LOAD_GOOD, &load_good, sizeof load_good) ||
        !read_of_table(STATIC_Z, Z_MARK_GOOD, &mark_good, sizeof mark_good))
        return false;
    uintptr_t young = mark_good & Z_MARKED_YOUNG, mark = mark_good & Z_MARKED_OLD;
    bool remap = (load_good & Z_REMAPPED_BY_OLD) != 0, is_first = old_mark == 0;
    if (!is_first && young != young_mark)
        young_ns[young_count++ % YOUNG_COLLECTIONS] = *since_ns;
    bool begins = !is_first && mark != old_mark;
    /* The last young collection starts in the same pause as the marking; the one before it has promoted all. */
    size_t oldest = begins && young_count >= 2 && is_on_request() ? young_count - 2 : young_count;
    *since_ns = young_ns[oldest % YOUNG_COLLECTIONS];
    *is_set = is_first ? false : mark != old_mark ? true : remap != old_remap ? false : is_marking;
    young_mark = young;
    old_mark = mark;
    old_remap = remap;
    return true;
}

static bool read_phase(enum jvm_field table, enum jvm_field field, bool *is_set)
{
    enum { RELOCATING = 2 };
    uint32_t phase;
    bool is_read = read_of_table(table, field, &phase, sizeof phase);
    *is_set = phase != RELOCATING;
    return is_read;
}

/* Updates the marking state. The start of a marking that was already running at the first call is unknown. */
static void look(uint64_t since_ns)
{
    bool is_set = false, is_first = !has_looked;
    bool is_read = marking == MARKING_FLAG      ? read_flag(&is_set)
                   : marking == MARKING_COLOURS ? read_colours(&since_ns, &is_set)
                   : marking == MARKING_PHASE   ? read_phase(STATIC_Z, Z_PHASE, &is_set)
                   : marking == MARKING_PHASE_X ? read_phase(STATIC_X, X_PHASE, &is_set)
                                                : false;
    has_looked |= is_read;
    if (!is_read || is_set == is_marking)
        return;
    is_marking = is_set;
    if (is_set)
        marking_since_ns = is_first ? 0 : since_ns;
    else
        is_marked = marking_since_ns != 0;
}

void jvm_collections_begin(void)
{
    struct perf_names names = {0};
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL || atomic_load_explicit(&is_ready, memory_order_relaxed))
        return;
    (void)jvm_layout_read(library, layout);
    read_counters(&names);
    (void)have_counted(full);
    (void)have_counted(steps);
    if (names.has_g1 || names.has_shenandoah)
        find_flag(&names);
    else
        find_colours();
    atomic_store_explicit(&is_ready, true, memory_order_release);
}

/* ZGC maps its objects under several addresses, and reserves none here. */
void jvm_collections_tell_range(const allocsample_hooks *hooks, allocsample_heap *heap)
{
    enum { WORD = sizeof(uintptr_t) };
    uintptr_t objects, start, words;
    if (!ALLOCSAMPLE_HAS(hooks, heap_range) || !atomic_load_explicit(&is_ready, memory_order_acquire) ||
        layout[STATIC_OBJECTS] == JVM_HAS_NO || layout[OBJECTS_RESERVED] == JVM_HAS_NO ||
        layout[REGION_START] == JVM_HAS_NO || layout[REGION_WORDS] == JVM_HAS_NO)
        return;
    objects = *(const uintptr_t *)layout[STATIC_OBJECTS];
    uintptr_t reserved = objects + (uintptr_t)layout[OBJECTS_RESERVED];
    if (objects != 0 && foreign_copy(reserved + (uintptr_t)layout[REGION_START], &start, sizeof start) &&
        foreign_copy(reserved + (uintptr_t)layout[REGION_WORDS], &words, sizeof words) && words != 0 &&
        words < (UINTPTR_MAX - start) / WORD)
        hooks->heap_range(heap, 0, start, start + words * WORD);
}

void jvm_collections_pause_begins(uint64_t now_ns)
{
    if (atomic_load_explicit(&is_ready, memory_order_acquire))
        look(pause_begin_ns); /* a change since the last pause took effect at the end of that pause */
    pause_begin_ns = now_ns;
}

bool jvm_collections_are_concurrent(void)
{
    return atomic_load_explicit(&is_ready, memory_order_acquire) && marking != MARKING_UNKNOWN;
}

struct jvm_pause jvm_collections_pause_ends(void)
{
    struct jvm_pause pause = {.kind = ALLOCSAMPLE_MINOR};
    if (!atomic_load_explicit(&is_ready, memory_order_acquire))
        return pause;
    look(pause_begin_ns);
    bool is_full = have_counted(full), is_step = have_counted(steps);
    if (is_full || is_marked)
        pause = (struct jvm_pause){ALLOCSAMPLE_MAJOR, is_full ? pause_begin_ns : marking_since_ns};
    else if (is_step)
        pause.kind = ALLOCSAMPLE_MAJOR_STEP;
    is_marked = false;
    return pause;
}
