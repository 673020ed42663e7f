/* PyPy's heap as a heap of the hook ABI, in builds of PyPy as they are installed.
 *
 * PyPy's code, and the code that its compiler makes, compare with one word in memory when they allocate: the nursery's
 * top. Lowered to the next sample point, it leads them into the collector's slow path, which calls collect_and_reserve.
 * A jump there asks us first: an object that fits below the real top is a sample, and nothing is collected; otherwise
 * the real top is put back, and the collector does what it always does. Two more jumps, at the start of minor collections
 * and of the steps of major ones, put the real top back before whoever else collects, and look afterwards at what became
 * of the samples.
 *
 * All that is done under the interpreter's lock. PyPy has no names for it, so that builds are known one by one, by their
 * build id and by what their functions begin with; others are left alone. */
#define _GNU_SOURCE
#include "allocsample.h"
#include "bridge.h"
#include "kit/code.h"
#include "pypy.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

#if defined(__x86_64__)

enum { BATCH = 64, STATISTIC_USED = 1 };
/* The collector's states. */
enum { SCANNING, MARKING, SWEEPING, FINALIZING };
/* The low half of an object's header is its type; these are in the high half. */
#define VISITED (UINT64_C(1) << 34)
#define PINNED (UINT64_C(1) << 41)
/* The header of one that has moved: where to is behind it. */
#define FORWARDED ((uint64_t)-42)

/* The first instructions of the functions: whole and position-independent. */
#define RESERVE_BEGINS "\x41\x56\x49\x89\xf6"         /* push %r14; mov %rsi,%r14 */
#define COLLECT_BEGINS "\x41\x57\x41\x56\x41\x55"     /* push %r15; push %r14; push %r13 */
#define STEP_BEGINS COLLECT_BEGINS
#define ENTRY_BEGINS "\x41\x56\x41\x55\x41\x54"       /* push %r14; push %r13; push %r12 */
#define LOG_STOP_BEGINS "\x55\x53\x48\x83\xec\x08"    /* push %rbp; push %rbx; sub $8,%rsp */
#define LOG_START_BEGINS "\x80\x3d\x22\x32\x56\x01\x00" /* cmpb $0,distance(%rip) */
#define LOG_START_DISTANCE 2

static const struct pypy_build builds[] = {
    /* Debian 12: pypy3-lib 7.3.11+dfsg-2+deb12u3, amd64 */
    {.id = {0x28, 0x29, 0xc3, 0xe9, 0x50, 0xc6, 0x30, 0xb7, 0xa0, 0x52,
            0x43, 0x1a, 0xed, 0x23, 0xa8, 0xd8, 0x04, 0x09, 0xe8, 0x7c},
     .reserve = 0x209fd40, .collect = 0x209da30, .step = 0x209e8b0, .entry = 0x22f90d0,
     .log_start = 0x232a6e0, .log_stop = 0x232a810, .log_sections = 0x3867a20,
     .gc = 0x2823980, .state = 0xc8, .threshold = 0x168, .free = 0x190, .top = 0x1b0, .large_bytes = 0x228,
     .small_bytes = 0x2823968,
     .type_names = 0x33f99e0, .type_ids = 0x33f3580,
     .frames_of_code = 0x2313ac0, .lock = 0x388cb00,
     .codes = 0x298a910, .handles = 16, .name = 8, .number = 72, .file = 120, .line = 128},
};

static const struct pypy_build *build;
static uintptr_t base;
static const void *first_thread; /* state of the thread that PyPy starts on */
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static allocsample_nursery nursery;

/* The collector's own functions. */
static uintptr_t (*reserve)(void *gc, uintptr_t size);
static void (*collect)(void *gc);
static void (*step)(void *gc, intptr_t size);

static struct {
    uintptr_t limit; /* what we have put in place of the top; 0: not begun */
    uintptr_t top;   /* the real one */
    uintptr_t free;  /* where the nursery's next object went when it was last seen */
    bool is_reserving;
} seen;
static uint64_t minor_collections, major_collections;

static uintptr_t word_of(const void *gc, size_t offset)
{
    uintptr_t word;
    memcpy(&word, (const uint8_t *)gc + offset, sizeof word);
    return word;
}

static void set_top(void *gc, uintptr_t top)
{
    memcpy((uint8_t *)gc + build->top, &top, sizeof top);
}

/* ---- what became of samples ---- */

static allocsample_resolution young(const allocsample_pending *sample)
{
    const uint64_t *object = (const uint64_t *)sample->address;
    allocsample_resolution answer = {.id = sample->id, .slot = sample->slot, .address = sample->address};
    if (object[0] == FORWARDED) {
        answer.address = object[1];
        answer.fate = ALLOCSAMPLE_PROMOTED;
    } else {
        answer.fate = (object[0] & PINNED) != 0 ? ALLOCSAMPLE_ALIVE : ALLOCSAMPLE_DEAD;
    }
    return answer;
}

static allocsample_resolution old(const allocsample_pending *sample)
{
    uint64_t header = *(const uint64_t *)sample->address;
    return (allocsample_resolution){.id = sample->id,
                                    .slot = sample->slot,
                                    .address = sample->address,
                                    .fate = (header & VISITED) != 0 ? ALLOCSAMPLE_ALIVE : ALLOCSAMPLE_DEAD};
}

static void resolve(uint32_t kind)
{
    allocsample_pending samples[BATCH];
    allocsample_resolution answers[BATCH];
    uint64_t cursor = 0;
    bool is_minor = kind == ALLOCSAMPLE_MINOR;
    allocsample_nursery *of = is_minor ? &nursery : NULL;
    uint64_t number = (is_minor ? minor_collections : major_collections) + 1;
    size_t count;
    while ((count = hooks->pending(heap, of, kind, samples, BATCH, &cursor)) > 0) {
        for (size_t i = 0; i < count; i++) {
            answers[i] = is_minor ? young(&samples[i]) : old(&samples[i]);
            /* The nursery is not cleared: a dead object's header is there until the next one takes its place. */
            answers[i].type = pypy_type(hooks, heap, (uint32_t)*(const uint64_t *)answers[i].address);
        }
        hooks->resolve(heap, of, kind, answers, count, number);
    }
}

static void tell(const void *gc, uint32_t kind, uint64_t number, uint64_t begin_ns)
{
    uint64_t used = word_of(gc, build->large_bytes) + *(const uintptr_t *)(base + build->small_bytes);
    uint64_t values[] = {STATISTIC_USED, used};
    allocsample_gc record = {.size = sizeof record,
                             .kind = kind,
                             .id = number,
                             .begin_ns = begin_ns,
                             .end_ns = hooks->now_ns(),
                             .statistics = 1,
                             .values = values};
    hooks->gc(heap, &record);
}

/* ---- the three jumps ---- */

#define JUMPED_TO __attribute__((section("pypy_jumps"), noinline))
extern const uint8_t __start_pypy_jumps[] HIDDEN, __stop_pypy_jumps[] HIDDEN;

/* The nursery goes on at `free`. */
static void go_on(void *gc, uintptr_t old_free, uintptr_t free)
{
    seen.top = word_of(gc, build->top);
    if (seen.limit == 0)
        seen.limit = hooks->nursery_begin(heap, &nursery, free, seen.top);
    else
        seen.limit = hooks->nursery_sync(heap, &nursery, old_free, free, seen.top);
    set_top(gc, seen.limit);
    seen.free = free;
}

/* The object that was reserved at `object` may be a sample. */
static uintptr_t take(void *gc, uintptr_t object, uintptr_t size)
{
    seen.free = object + size;
    if (seen.free > seen.limit) {
        seen.limit = hooks->nursery_point(heap, &nursery, object, size, seen.top, 0);
        set_top(gc, seen.limit);
        pypy_name_functions(hooks, heap);
    }
    return object;
}

/* Memory that the program reports to the collector has made the threshold negative, and put `free` to the top, which was
 * our limit, so that a collection comes now. */
static bool is_under_pressure(const void *gc, uintptr_t object)
{
    return object == seen.limit && seen.limit < seen.top && (int64_t)word_of(gc, build->threshold) < 0;
}

/* In place of collect_and_reserve(gc, size): the object does not fit below what is now the top, and `free` is behind it.
 * Returns where it goes, or NULL with an exception of PyPy's. */
JUMPED_TO static uintptr_t on_reserve(void *gc, uintptr_t size)
{
    uintptr_t object = word_of(gc, build->free) - size;
    if (seen.is_reserving)
        return reserve(gc, size);
    if (seen.limit != 0 && word_of(gc, build->top) == seen.limit) {
        bool is_pressed = is_under_pressure(gc, object);
        if (object + size <= seen.top && !is_pressed)
            return take(gc, object, size);
        /* The former position is not known; bytes since then are in no figure. */
        if (is_pressed)
            object = seen.free;
        set_top(gc, seen.top);
    }
    seen.is_reserving = true;
    uintptr_t reserved = reserve(gc, size);
    seen.is_reserving = false;
    if (reserved == 0) {
        seen.limit = 0; /* it begins again */
        return 0;
    }
    go_on(gc, object, reserved);
    return take(gc, reserved, size);
}

/* Replaces _minor_collection(gc). */
JUMPED_TO static void on_collect(void *gc)
{
    uint64_t begin_ns = hooks->now_ns();
    uintptr_t free = word_of(gc, build->free);
    bool is_ours = !seen.is_reserving && seen.limit != 0 && word_of(gc, build->top) == seen.limit;
    if (is_ours)
        set_top(gc, seen.top);
    pypy_is_collecting = true;
    collect(gc);
    pypy_is_collecting = false;
    resolve(ALLOCSAMPLE_MINOR);
    tell(gc, ALLOCSAMPLE_MINOR, ++minor_collections, begin_ns);
    if (is_ours)
        go_on(gc, free, word_of(gc, build->free));
}

/* Replaces major_collection_step(gc, size). */
JUMPED_TO static void on_step(void *gc, intptr_t size)
{
    uint64_t begin_ns = hooks->now_ns();
    uintptr_t before = word_of(gc, build->state);
    pypy_is_collecting = true;
    step(gc, size);
    pypy_is_collecting = false;
    uintptr_t after = word_of(gc, build->state);
    /* All live objects are marked, and nothing has been freed. */
    if (before == MARKING && after == SWEEPING)
        resolve(ALLOCSAMPLE_MAJOR);
    bool is_last = before == FINALIZING && after == SCANNING;
    major_collections += is_last;
    tell(gc, is_last ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MAJOR_STEP, major_collections + !is_last, begin_ns);
}

/* ---- sections of PYPYLOG, on our clock ---- */

static intptr_t (*log_start)(const char *section, intptr_t wants_time);
static intptr_t (*log_stop)(const char *section, intptr_t wants_time);
/* Sections are inside of each other: PyPy has a bit for each that is open, the last one lowest, which says whether it is
 * logged. */
static struct {
    uint64_t begin_ns[64];
    size_t depth;
} sections;

static bool is_logged(void)
{
    return (*(const volatile intptr_t *)(base + build->log_sections) & 1) != 0;
}

/* Replaces pypy_debug_start. */
JUMPED_TO static intptr_t on_log_start(const char *section, intptr_t wants_time)
{
    intptr_t time = log_start(section, wants_time);
    size_t depth = sections.depth++;
    if (depth < 64 && is_logged())
        sections.begin_ns[depth] = hooks->now_ns();
    return time;
}

/* Replaces pypy_debug_stop. */
JUMPED_TO static intptr_t on_log_stop(const char *section, intptr_t wants_time)
{
    size_t depth = sections.depth == 0 ? 64 : --sections.depth;
    if (depth < 64 && is_logged())
        hooks->marker(heap, section, sections.begin_ns[depth], hooks->now_ns());
    return log_stop(section, wants_time);
}

/* Before the program, once PyPy has a nursery. */
__attribute__((used)) static void begin(void)
{
    void *gc = (void *)(base + build->gc);
    if (seen.limit == 0 && word_of(gc, build->top) != 0)
        go_on(gc, 0, word_of(gc, build->free));
}

/* Calls `begin` with the arguments of entry_point put aside, and goes on there: no frame of ours stays on the stack. */
extern const void *pypy_entry HIDDEN;
const void *pypy_entry;
void pypy_on_entry(void);
__asm__(".pushsection .text,\"ax\",@progbits\n\t.hidden pypy_on_entry\n\t.globl pypy_on_entry\n\t"
        ".type pypy_on_entry, @function\npypy_on_entry:\n\t.cfi_startproc\n\t"
        "pushq %rdi\n\t.cfi_adjust_cfa_offset 8\n\tpushq %rsi\n\t.cfi_adjust_cfa_offset 8\n\t"
        "subq $8, %rsp\n\t.cfi_adjust_cfa_offset 8\n\tcall begin\n\taddq $8, %rsp\n\t.cfi_adjust_cfa_offset -8\n\t"
        "popq %rsi\n\t.cfi_adjust_cfa_offset -8\n\tpopq %rdi\n\t.cfi_adjust_cfa_offset -8\n\t"
        "jmp *pypy_entry(%rip)\n\t.cfi_endproc\n\t.size pypy_on_entry, .-pypy_on_entry\n\t.popsection");

/* ---- start ---- */

static bool has_id(const struct dl_phdr_info *object, const uint8_t *id, size_t id_length)
{
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_NOTE)
            continue;
        const uint8_t *at = (const uint8_t *)(object->dlpi_addr + segment->p_vaddr), *end = at + segment->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            const uint8_t *name = at + sizeof *note, *content = name + ((note->n_namesz + 3u) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz == id_length && note->n_namesz == 4 &&
                memcmp(name, "GNU", 4) == 0 && memcmp(content, id, id_length) == 0)
                return true;
            at = content + ((note->n_descsz + 3u) & ~3u);
        }
    }
    return false;
}

static int look_at(struct dl_phdr_info *object, size_t size, void *argument)
{
    bool *has_pypy = argument;
    (void)size;
    if (strstr(object->dlpi_name, "libpypy") == NULL)
        return 0;
    *has_pypy = true;
    for (size_t i = 0; i < sizeof builds / sizeof builds[0]; i++) {
        if (has_id(object, builds[i].id, sizeof builds[i].id)) {
            build = &builds[i];
            base = object->dlpi_addr;
            first_thread = object->dlpi_tls_data;
        }
    }
    return 1;
}

/* A place to jump from. */
struct jump {
    uint32_t at;
    const char *begins;
    size_t length, distance_at;
    void *original; /* the address of a pointer, for what the function does without us */
    void (*to)(void);
    const void *from_room;
};
#define JUMP(AT, BEGINS, DISTANCE_AT, ORIGINAL, TO)                                                                    \
    {AT, BEGINS, sizeof BEGINS - 1, DISTANCE_AT, ORIGINAL, (void (*)(void))TO, NULL}

/* All or none: the code is as it was until the last check is done, and only the system can refuse then. */
static bool put_jumps(void)
{
    struct jump jumps[] = {
        /* The last two ask each time whether PyPy logs. */
        JUMP(build->collect, COLLECT_BEGINS, 0, &collect, on_collect),
        JUMP(build->step, STEP_BEGINS, 0, &step, on_step),
        JUMP(build->reserve, RESERVE_BEGINS, 0, &reserve, on_reserve),
        JUMP(build->entry, ENTRY_BEGINS, 0, &pypy_entry, pypy_on_entry),
        JUMP(build->log_stop, LOG_STOP_BEGINS, 0, &log_stop, on_log_stop),
        JUMP(build->log_start, LOG_START_BEGINS, LOG_START_DISTANCE, &log_start, on_log_start),
    };
    size_t count = sizeof jumps / sizeof jumps[0];
    struct code_room room;
    for (size_t i = 0; i < count; i++) {
        if (memcmp((const void *)(base + jumps[i].at), jumps[i].begins, jumps[i].length) != 0)
            return false;
    }
    if (!code_room_open(&room, base))
        return false;
    for (size_t i = 0; i < count; i++) {
        void *original =
            code_room_original(&room, (const void *)(base + jumps[i].at), jumps[i].length, jumps[i].distance_at);
        if (original == NULL)
            return false;
        memcpy(jumps[i].original, &original, sizeof original);
        jumps[i].from_room = code_room_jump(&room, jumps[i].to);
    }
    if (!code_room_close(&room))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (code_put_jump((void *)(base + jumps[i].at), jumps[i].from_room))
            continue;
        while (i-- > 0)
            code_put((void *)(base + jumps[i].at), jumps[i].begins, jumps[i].length);
        return false;
    }
    return true;
}

static void join(void)
{
    bool has_pypy = false;
    dl_iterate_phdr(look_at, &has_pypy);
    hooks = has_pypy ? allocsample_get_hooks(ALLOCSAMPLE_VERSION) : NULL;
    if (hooks == NULL)
        return;
    uint64_t now = hooks->now_ns();
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_NURSERY,
        .name = "pypy",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE,
        .walk = pypy_walk,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL)
        return;
    if (build == NULL) {
        hooks->marker(heap, "this build of PyPy is not known: its heap is not sampled", now, now);
        hooks->heap_unregister(heap);
        return;
    }
    if (first_thread == NULL || !pypy_names_make(build, base, first_thread) || !put_jumps()) {
        hooks->marker(heap, "PyPy's code cannot be changed here: its heap is not sampled", now, now);
        hooks->heap_unregister(heap);
        return;
    }
    hooks->define_function(heap, PYPY_COLLECTOR, "garbage collector", "PyPy", 0);
    hooks->define_statistic(heap, STATISTIC_USED, "used", "bytes");
    uintptr_t start, end;
    if (symbols_code_of((const void *)(base + build->reserve), &start, &end))
        hooks->interpreter_range(heap, start, end);
    hooks->interpreter_range(heap, (uintptr_t)__start_pypy_jumps, (uintptr_t)__stop_pypy_jumps);
}

#else

static int is_pypy(struct dl_phdr_info *object, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    return strstr(object->dlpi_name, "libpypy") != NULL;
}

/* Known builds are for x86-64. */
static void join(void)
{
    if (dl_iterate_phdr(is_pypy, NULL) != 0)
        shim_services.decline("pypy", "this processor", "is not supported, only x86-64 is");
}

#endif

/* Known by its build id: it exports no name of its own. */
const struct bridge bridge_pypy = {.name = "pypy", .group = BRIDGE_PYPY, .join = join};
