/* PyPy's heap as a heap of the hook ABI, in builds of PyPy as they are installed.
 *
 * PyPy's code, and the code that its compiler makes, compare with one word in memory when they allocate: the nursery's
 * top. Lowered to the next sample point, it leads them into the collector's slow path, which calls collect_and_reserve.
 * A jump there asks us first: an object that fits below the real top is a sample, and nothing is collected; otherwise
 * the real top is put back, and the collector does what it always does. Two more jumps, at the start of minor collections
 * and of the steps of major ones, put the real top back before whoever else collects, and look afterwards at what became
 * of the samples.
 *
 * All that is done under the interpreter's lock. PyPy has no names for it. library.c knows its places, by a table or by
 * a search; what a search has found is compared with live objects before it is believed.
 *
 * At an attach the code is changed under that lock, too: no thread without it is in any of these functions. */
#define _GNU_SOURCE
#include "allocsample.h"
#include "bridge.h"
#include "kit/code.h"
#include "kit/resume.h"
#include "kit/symbols.h"
#include "pypy.h"

#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BATCH = 64, STATISTIC_USED = 1 };
/* The collector's states. */
enum { SCANNING, MARKING, SWEEPING, FINALIZING };
/* The low half of an object's header is its type; these are in the high half. */
#define VISITED (UINT64_C(1) << 34)
#define PINNED (UINT64_C(1) << 41)
/* The header of one that has moved: where to is behind it. */
#define FORWARDED ((uint64_t)-42)

static const struct pypy_library *library;
static const struct pypy_build *build;
static uintptr_t base;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static allocsample_nursery nursery;

/* The collector's own functions. */
static uintptr_t (*reserve)(void *gc, uintptr_t size);
static void (*collect)(void *gc);
static void (*step)(void *gc, intptr_t size);

/* The program was running when we joined. */
static bool is_late;
static struct {
    uintptr_t limit; /* what we have put in place of the top; 0: not begun */
    uintptr_t top;   /* the real one */
    uintptr_t free;  /* where the nursery's next object went when it was last seen */
    bool is_reserving;
} seen;
static uint64_t minor_collections, major_collections;
/* What a build that was found has still to show: see compare. */
static struct {
    bool is_open, is_refused;
    uint32_t survivors, with_type, majors;
} trial;

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
    if (trial.is_refused)
        return;
    allocsample_nursery *of = is_minor ? &nursery : NULL;
    uint64_t number = (is_minor ? minor_collections : major_collections) + 1;
    size_t count;
    while ((count = hooks->pending(heap, of, kind, samples, BATCH, &cursor)) > 0) {
        for (size_t i = 0; i < count; i++) {
            answers[i] = is_minor ? young(&samples[i]) : old(&samples[i]);
            /* The nursery is not cleared: a dead object's header is there until the next one takes its place. */
            uint32_t type = (uint32_t)*(const uint64_t *)answers[i].address;
            answers[i].type = pypy_type(hooks, heap, type);
            if (trial.is_open && answers[i].fate != ALLOCSAMPLE_DEAD) {
                trial.survivors++;
                trial.with_type += pypy_is_type(type);
            }
        }
        hooks->resolve(heap, of, kind, answers, count, number);
    }
}

static void tell(const void *gc, uint32_t kind, uint64_t number, uint64_t begin_ns)
{
    bool has_used = build->small_bytes != 0;
    uint64_t used = !has_used ? 0 : word_of(gc, build->large_bytes) + *(const uintptr_t *)(base + build->small_bytes);
    uint64_t values[] = {STATISTIC_USED, used};
    allocsample_gc record = {.size = sizeof record,
                             .kind = kind,
                             .id = number,
                             .begin_ns = begin_ns,
                             .end_ns = hooks->now_ns(),
                             .statistics = has_used,
                             .values = values};
    hooks->gc(heap, &record);
}

/* ---- comparing a build that was found with live objects ---- */

static void refuse(void *gc, const char *note)
{
    uint64_t now = hooks->now_ns();
    trial.is_open = false;
    trial.is_refused = true;
    if (seen.limit != 0 && word_of(gc, build->top) == seen.limit)
        set_top(gc, seen.top);
    seen.limit = 0;
    hooks->marker(heap, note, now, now);
}

/* After a collection: what survives has a type of the table's. After all live objects are marked: those that run are. Both
 * are facts about any build, and neither holds if a place is not what it is taken for. */
static void compare(void *gc, bool is_marked)
{
    enum { SURVIVORS = 64, MAJORS = 4 };
    if (!trial.is_open)
        return;
    if (trial.with_type < trial.survivors - trial.survivors / 10) {
        refuse(gc, "note: PyPy's heap is not sampled from here on: survivors do not look like objects of this build");
        return;
    }
    if (is_marked) {
        struct pypy_marked running = pypy_running_with(VISITED);
        trial.majors += running.all > 0;
        if (running.marked != running.all)
            return refuse(gc, "note: PyPy's heap is not sampled from here on: this build marks live objects otherwise");
    }
    trial.is_open = trial.survivors < SURVIVORS || trial.majors < MAJORS;
}

/* ---- the three jumps ---- */

#define JUMPED_TO __attribute__((section("pypy_jumps"), noinline))
extern const uint8_t __start_pypy_jumps[] HIDDEN, __stop_pypy_jumps[] HIDDEN;

/* The nursery goes on at `free`. */
static void go_on(void *gc, uintptr_t old_free, uintptr_t free)
{
    if (trial.is_refused)
        return;
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
    if (seen.limit != 0 && seen.free > seen.limit) {
        pypy_names_verify(hooks, heap);
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
    compare(gc, false);
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
        compare(gc, true), resolve(ALLOCSAMPLE_MAJOR);
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

/* Between the start and the stop of this section the nursery is allocated. */
static bool makes_nursery(const char *section)
{
    return strcmp(section, "gc-set-nursery-size") == 0;
}

/* Replaces pypy_debug_start. */
JUMPED_TO static intptr_t on_log_start(const char *section, intptr_t wants_time)
{
    intptr_t time = log_start(section, wants_time);
    size_t depth = sections.depth++;
    if (makes_nursery(section))
        pypy_is_collecting = true;
    if (depth < 64 && is_logged())
        sections.begin_ns[depth] = hooks->now_ns();
    return time;
}

/* Replaces pypy_debug_stop. */
JUMPED_TO static intptr_t on_log_stop(const char *section, intptr_t wants_time)
{
    size_t depth = sections.depth == 0 ? 64 : --sections.depth;
    if (makes_nursery(section))
        pypy_is_collecting = false;
    if (depth < 64 && is_logged())
        hooks->marker(heap, section, sections.begin_ns[depth], hooks->now_ns());
    return log_stop(section, wants_time);
}

/* The evidence: one note for the reports, and a marker for each ballot. */
static void tell_votes(void)
{
    char text[256];
    uint64_t now = hooks->now_ns();
    snprintf(text, sizeof text,
             "note: this build of PyPy is not in a table, so its places were searched for: %u of %u places in its code agree on the "
             "nursery, %u of %u on the collector",
             library->votes[PYPY_NURSERY].winner, library->votes[PYPY_NURSERY].all, library->votes[PYPY_RESERVE].winner, library->votes[PYPY_RESERVE].all);
    hooks->marker(heap, text, now, now);
    for (size_t i = 0; i < PYPY_BALLOTS; i++) {
        snprintf(text, sizeof text, "vote: %s, %u of %u", pypy_ballot_name((enum pypy_ballot)i), library->votes[i].winner, library->votes[i].all);
        hooks->marker(heap, text, now, now);
    }
}

/* Whether PyPy has a nursery that looks like one. */
static bool is_nursery(uintptr_t free, uintptr_t top)
{
    enum { NURSERY_BITS = 40 };
    return free % 8 == 0 && top % 8 == 0 && free <= top && (top - free) >> NURSERY_BITS == 0;
}

/* Once PyPy has a nursery: before the program, or at an attach. Under the interpreter's lock, outside of a collection. */
__attribute__((used)) static void begin(void)
{
    void *gc = (void *)(base + build->gc);
    pypy_names_begin();
    uintptr_t free = word_of(gc, build->free), top = word_of(gc, build->top), state = word_of(gc, build->state);
    if (seen.limit != 0 || top == 0)
        return;
    if (!is_nursery(free, top) || state > FINALIZING || (state != SCANNING && !is_late))
        refuse(gc, "note: PyPy's heap is not sampled: its nursery does not look like one when sampling starts");
    else
        go_on(gc, 0, free);
    if (trial.is_open && !is_late)
        tell_votes();
}

/* Calls `begin` with the arguments of entry_point put aside, and goes on there: no frame of ours stays on the stack. */
extern const void *pypy_entry HIDDEN;
const void *pypy_entry;
void pypy_on_entry(void);
#if defined(__x86_64__)
__asm__(".pushsection .text,\"ax\",@progbits\n\t.hidden pypy_on_entry\n\t.globl pypy_on_entry\n\t"
        ".type pypy_on_entry, @function\npypy_on_entry:\n\t.cfi_startproc\n\t"
        "pushq %rdi\n\t.cfi_adjust_cfa_offset 8\n\tpushq %rsi\n\t.cfi_adjust_cfa_offset 8\n\t"
        "subq $8, %rsp\n\t.cfi_adjust_cfa_offset 8\n\tcall begin\n\taddq $8, %rsp\n\t.cfi_adjust_cfa_offset -8\n\t"
        "popq %rsi\n\t.cfi_adjust_cfa_offset -8\n\tpopq %rdi\n\t.cfi_adjust_cfa_offset -8\n\t"
        "jmp *pypy_entry(%rip)\n\t.cfi_endproc\n\t.size pypy_on_entry, .-pypy_on_entry\n\t.popsection");
#else
__asm__(".pushsection .text,\"ax\",@progbits\n\t.balign 4\n\t.hidden pypy_on_entry\n\t.globl pypy_on_entry\n\t"
        ".type pypy_on_entry, @function\npypy_on_entry:\n\t.cfi_startproc\n\thint #34 /* bti c */\n\t"
        "stp x0, x1, [sp, #-32]!\n\t.cfi_adjust_cfa_offset 32\n\tstr x30, [sp, #16]\n\t.cfi_rel_offset 30, 16\n\t"
        "bl begin\n\tldr x30, [sp, #16]\n\t.cfi_restore 30\n\t"
        "ldp x0, x1, [sp], #32\n\t.cfi_adjust_cfa_offset -32\n\tadrp x16, pypy_entry\n\t"
        "ldr x16, [x16, :lo12:pypy_entry]\n\tbr x16\n\t.cfi_endproc\n\t"
        ".size pypy_on_entry, .-pypy_on_entry\n\t.popsection");
#endif

/* ---- start ---- */

/* For two jumps and what one of them replaces. */
enum { ROOM = 64 };

/* Places to jump from. */
static struct jump {
    uint32_t at;
    void *original; /* the address of a pointer, for what the function does without us */
    void (*to)(void);
    uint8_t *code;
    size_t length, distance_at;
} jumps[6];
static size_t jumps_count;
static struct code_changes changes;

static void add_jump(uint32_t at, void *original, void (*to)(void))
{
    jumps[jumps_count++] = (struct jump){.at = at, .original = original, .to = to};
}

/* Finds out whether all can be put, and makes what they need; changes nothing. */
static bool prepare_jumps(void)
{
    struct code_room room;
    jumps_count = 0;
    add_jump(build->collect, &collect, (void (*)(void))on_collect);
    add_jump(build->step, &step, (void (*)(void))on_step);
    add_jump(build->reserve, &reserve, (void (*)(void))on_reserve);
    if (!is_late)
        add_jump(build->entry, &pypy_entry, pypy_on_entry);
    /* These ask each time whether PyPy logs. */
    add_jump(build->log_stop, &log_stop, (void (*)(void))on_log_stop);
    add_jump(build->log_start, &log_start, (void (*)(void))on_log_start);
    for (size_t i = 0; i < jumps_count; i++) {
        uint8_t *code = (uint8_t *)(base + jumps[i].at);
        jumps[i].code = code + pypy_mark_bytes(code);
        jumps[i].length = code_beginning(jumps[i].code, PYPY_BEGINNING_MOST, &jumps[i].distance_at);
        if (jumps[i].length == 0)
            return false;
    }
    if (!code_room_open(&room, base, jumps_count * ROOM))
        return false;
    for (size_t i = 0; i < jumps_count; i++) {
        void *original = code_room_original(&room, jumps[i].code, jumps[i].length, jumps[i].distance_at);
        const void *jump = code_room_jump(&room, jumps[i].to);
        if (original == NULL || !code_changes_add_jump(&changes, jumps[i].code, jump))
            return false;
        memcpy(jumps[i].original, &original, sizeof original);
    }
    return code_room_close(&room) && code_changes_close(&changes);
}

static void decline_code(void)
{
    shim_services.decline("pypy", "PyPy's code", "cannot be changed here");
}

/* Whether the jumps are there, or a thread is about to put them. */
static _Atomic(bool) are_put;

/* Once, while no thread is in one of the functions. Some of the jumps alone do no harm: they find the heap refused. False: they were not put
 * now. */
static bool put_jumps(void)
{
    if (atomic_exchange_explicit(&are_put, true, memory_order_acq_rel))
        return false;
    bool is_done = code_changes_make(&changes);
    if (!is_done) {
        trial.is_open = false;
        trial.is_refused = true;
        decline_code();
    }
    return is_done;
}

/* After an attach: whether the next thread that calls malloc with the interpreter's lock is to change the code. */
static _Atomic(bool) is_waiting;

/* A thread that computes, and waits for nothing, keeps the lock. It is in malloc here, so at the beginning of none of the functions.
 * Sampling starts when the nursery is next full. */
static COLD void join_with_lock_held(void)
{
    if (!pypy_has_lock() || !atomic_exchange_explicit(&is_waiting, false, memory_order_acq_rel))
        return;
    if (shim_services.is_unfiltered())
        put_jumps();
    else
        shim_services.decline("pypy", "PyPy's lock", "was not free, and a filter of system calls was installed meanwhile");
}

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    if (UNLIKELY(atomic_load_explicit(&is_waiting, memory_order_relaxed)))
        join_with_lock_held();
    return pypy_walk(user, frames, capacity);
}

/* Finds PyPy and registers its heap; false: there is none, or it cannot be joined, and nothing has changed. */
static bool prepare(void)
{
    library = pypy_library_here();
    if (library == NULL)
        return false;
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL)
        return false;
    if (library->thread == NULL && library->build->thread_key == 0) {
        shim_services.decline("pypy", "PyPy's threads", "have no state where the program starts");
        return false;
    }
    build = library->build;
    base = library->base;
    if (!pypy_names_make(library) || !prepare_jumps()) {
        decline_code();
        code_changes_drop(&changes);
        return false;
    }
    /* Last: from here on the program's threads may walk. */
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_NURSERY,
        .name = "pypy",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE,
        .walk = walk,
    };
    heap = hooks->heap_register(&description);
    return heap != NULL;
}

static void describe_heap(void)
{
    trial.is_open = !library->is_verified;
    hooks->define_function(heap, PYPY_COLLECTOR, "garbage collector", "PyPy", 0);
    hooks->define_statistic(heap, STATISTIC_USED, "used", "bytes");
    uintptr_t start, end;
    if (symbols_code_of((const void *)(base + build->reserve), &start, &end))
        hooks->interpreter_range(heap, start, end);
    hooks->interpreter_range(heap, (uintptr_t)__start_pypy_jumps, (uintptr_t)__stop_pypy_jumps);
}

static void join(void)
{
    if (prepare() && put_jumps())
        describe_heap();
}

/* ---- a process that is attached to ---- */

/* Takes the interpreter's lock as PyPy's own threads do: it is the number of the thread that holds it, and 0 while it is free. A thread
 * gives it up for every system call that can wait, and to other threads of PyPy. False: not for a second. */
static bool take_lock(_Atomic(uintptr_t) *lock)
{
    enum { SPINS = 20000, SLEEP_NS = 200 * 1000, WAIT_NS = 1000 * 1000 * 1000 };
    uint64_t begin_ns = hooks->now_ns();
    do {
        for (int i = 0; i < SPINS; i++) {
            uintptr_t expected = 0;
            if (atomic_load_explicit(lock, memory_order_relaxed) == 0 &&
                atomic_compare_exchange_strong(lock, &expected, (uintptr_t)pthread_self()))
                return true;
        }
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    } while (hooks->now_ns() - begin_ns < WAIT_NS);
    return false;
}

static void change_code(void)
{
    _Atomic(uintptr_t) *lock = (_Atomic(uintptr_t) *)(base + build->lock);
    if (take_lock(lock)) {
        if (put_jumps())
            begin();
        atomic_store_explicit(lock, 0, memory_order_release);
    } else {
        atomic_store_explicit(&is_waiting, true, memory_order_release);
    }
}

static void attach(void)
{
    static bool is_tried;
    if (heap != NULL) {
        resume_heap(hooks, heap);
    } else {
        is_late = true;
        if (is_tried || !prepare()) {
            is_tried = true; /* it would find nothing else */
            return;
        }
        describe_heap();
        pypy_names_begin();
        if (trial.is_open)
            tell_votes();
    }
    if (!atomic_load_explicit(&are_put, memory_order_acquire))
        change_code();
}

static void detach(void)
{
    if (heap != NULL)
        hooks->control(heap, ALLOCSAMPLE_STOP, 0);
}

const struct bridge bridge_pypy = {.name = "pypy", .group = BRIDGE_PYPY, .join = join, .attach = attach, .detach = detach};
