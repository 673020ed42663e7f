/* Names of the functions that V8 has inlined into others.
 *
 * V8's sampling heap profiler walks machine frames, and knows nothing of what was inlined into them. Its CPU profiler does know,
 * and takes a sample when `v8::CpuProfiler::CollectSample` asks for one: so each draw (draws.c) asks. Both profilers' samples of a
 * draw are brought together by the moment at which the second was taken.
 *
 * A CPU profile can be read when it is stopped, by which V8 has named all stacks in it. So it is stopped when the list of drawn objects
 * has been read, and another one is started; not after every reading, if they are many: objects that were drawn meanwhile wait, and
 * are told with the times at which they were drawn, and died.
 *
 * The functions of the second profiler are put between the machine frames of the first (joined.h). */
#define _GNU_SOURCE
#include "bridge.h"
#include "joined.h"
#include "kit/memory.h"

#include <string.h>
#include <time.h>

/* How often V8's thread takes a stack of its own, by a signal: as rarely as can be. */
enum { SIGNAL_US = 2 * 1000 * 1000 };
/* A profile runs for a part of the time since the first one, within these limits: to stop it and to start the next one costs V8 some
 * milliseconds (an Express server spent 13 % of its time so when that was done thirty times a second). */
enum { LEAST_PAUSE_US = 20 * 1000, MOST_PAUSE_US = 500 * 1000, PAUSE_SHARE = 20 };
/* Limits on waiting draws and on their machine frames. Beyond them, inlined functions are charged to their callers. */
enum { DRAWS = 16384, FRAMES = 1 << 18 };
/* Functions of one stack of the CPU profiler, which notes 255 machine frames. */
enum { CPU_DEPTH = 1024 };
/* Stacks with all of the machine's functions in a profile that show that V8 names them. */
enum { FEWEST_NAMED = 16 };
/* v8::kDebugNaming, v8::kEagerLogging (V8 goes on noting what it compiles while no profile runs), v8::NewStringType::kNormal */
enum { DEBUG_NAMING = 1, EAGER_LOGGING = 1, NORMAL_STRING = 0 };

struct draw {
    struct v8_late sample;
    int64_t begin_us, end_us; /* V8 took its CPU sample in between */
    const void *node;         /* where that sample is in the CPU profile's tree; NULL: not found */
    uint32_t frames, depth;
};

struct v8_inlined {
    void *cpu_profiler, *isolate;
    struct v8_sampler *sampler;
    bool is_recorded; /* a CPU profile runs */
    int64_t first_us, begin_us; /* when the first profile and this one began */
    size_t count, read, frames_used;
    struct draw draws[DRAWS];
    struct v8_frame frames[FRAMES];
};

/* The marks of all five are made, in this recording. */
static _Atomic(bool) has_named, has_none, has_old, has_few, is_lost;

void v8_inlined_forget_marks(void)
{
    atomic_store_explicit(&has_named, false, memory_order_relaxed);
    atomic_store_explicit(&has_none, false, memory_order_relaxed);
    atomic_store_explicit(&has_old, false, memory_order_relaxed);
    atomic_store_explicit(&has_few, false, memory_order_relaxed);
}

void v8_note_few_draws(void)
{
    if (!v8_draws_too_few() || atomic_exchange_explicit(&has_few, true, memory_order_relaxed))
        return;
    uint64_t now_ns = v8_hooks->now_ns();
    v8_hooks->marker(v8_heap,
                     "note: Node.js before 22 samples too few of the objects that optimized code makes: their bytes may be a fifth "
                     "too low at 512 KiB, and less so at a smaller --interval",
                     now_ns, now_ns);
}

void v8_inlined_note_none(void)
{
    if (!v8_inlining_is_unknown() || !shim_services.is_asked_for(BRIDGE_NAMED) ||
        atomic_exchange_explicit(&has_none, true, memory_order_relaxed))
        return;
    uint64_t now_ns = v8_hooks->now_ns();
    v8_hooks->marker(v8_heap, "V8 inlines no functions", now_ns, now_ns);
}

static const char draws_are_missed[] = "note: V8 draws objects unseen: what inlined functions allocate is charged to their "
                                       "callers from here on";

int64_t v8_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* v8::base::TimeTicks */
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* ---- draws ---- */

static void on_draw(void *user)
{
    struct v8_inlined *inlined = user;
    if (inlined->count == DRAWS)
        return;
    int64_t begin_us = v8_now_us();
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    v8.collect_sample(inlined->isolate, 0, false);
    shim_quiet_end(before);
    inlined->draws[inlined->count++] =
        (struct draw){.sample = {.number = inlined->sampler->draws.count, .drawn_ns = (uint64_t)begin_us * 1000},
                      .begin_us = begin_us,
                      .end_us = v8_now_us()};
}

void v8_inlined_check(struct v8_inlined *inlined, enum v8_numbers numbers)
{
    if (numbers == NUMBERS_RIGHT)
        inlined->read = inlined->count;
    else
        inlined->count = inlined->read;
    if (numbers == NUMBERS_WRONG && !atomic_exchange_explicit(&is_lost, true, memory_order_relaxed)) {
        uint64_t now_ns = v8_hooks->now_ns();
        v8_hooks->marker(v8_heap, draws_are_missed, now_ns, now_ns);
    }
}

/* NULL: it was not noticed, or is told. */
static struct draw *find_draw(struct v8_inlined *inlined, uint64_t number)
{
    size_t low = 0, high = inlined->read;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (inlined->draws[middle].sample.number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < inlined->read && inlined->draws[low].sample.number == number ? &inlined->draws[low] : NULL;
}

bool v8_inlined_defer(struct v8_inlined *inlined, uint64_t number, uint64_t size, const struct v8_frame *frames,
                      size_t depth)
{
    struct draw *draw = find_draw(inlined, number);
    if (draw == NULL || FRAMES - inlined->frames_used < depth)
        return false;
    memcpy(inlined->frames + inlined->frames_used, frames, depth * sizeof *frames);
    draw->frames = (uint32_t)inlined->frames_used;
    draw->depth = (uint32_t)depth;
    draw->sample.size = size;
    draw->sample.interval = inlined->sampler->asked;
    inlined->frames_used += depth;
    return true;
}

void v8_inlined_died(struct v8_inlined *inlined, uint64_t number, uint64_t time_ns)
{
    struct draw *draw = find_draw(inlined, number);
    if (draw != NULL)
        draw->sample.died_ns = time_ns;
}

/* ---- stacks of the CPU profiler ---- */

/* 0: V8 does not say where it is, which happens for the outermost code of a script. */
static uint32_t function_of(const void *node, int script, void *isolate)
{
    int line = v8.cpu_node_line(node), column = v8.cpu_node_column(node);
    if (line <= 0)
        return 0;
    bool is_new;
    uint32_t number = names_number(&v8_names, v8_place_hash(isolate, script, line, column), &is_new);
    if (is_new)
        v8_define_function(number, v8.cpu_node_name(node), v8.cpu_node_file(node), line, column);
    return number;
}

/* Functions of scripts on the CPU profiler's stack, from the callee on. */
static size_t walk_named(const struct v8_inlined *inlined, const void *node, struct joined_named *named)
{
    size_t depth = 0;
    for (; node != NULL && depth < CPU_DEPTH; node = v8.cpu_node_parent(node)) {
        int script = v8.cpu_node_script(node);
        if (script > 0)
            named[depth++] = (struct joined_named){function_of(node, script, inlined->isolate), script};
    }
    return depth;
}

/* ---- profiles ---- */

/* Finds each draw's sample in the CPU profile. Both are in the order of time, but for samples that V8 took by a signal. */
static void find_nodes(struct v8_inlined *inlined, const void *profile)
{
    /* V8 adds a microsecond, so that no time is 0. How far samples may be out of order. */
    enum { AHEAD_US = 1, DISORDER = 4 };
    int count = v8.cpu_samples_count(profile), first = 0;
    for (size_t i = 0; i < inlined->count; i++) {
        struct draw *draw = &inlined->draws[i];
        while (first < count && v8.cpu_sample_us(profile, first) < draw->begin_us)
            first++;
        for (int at = first; at < count && at < first + DISORDER; at++) {
            int64_t taken_us = v8.cpu_sample_us(profile, at);
            if (taken_us < draw->begin_us || taken_us > draw->end_us + AHEAD_US)
                continue;
            draw->node = v8.cpu_sample(profile, at);
            first = at == first ? at + 1 : first;
            break;
        }
    }
}

/* Once V8 names most stacks of a profile. */
static void note_that_names_are_known(size_t complete, size_t all)
{
    if (complete < FEWEST_NAMED || complete * 2 < all ||
        atomic_exchange_explicit(&has_named, true, memory_order_relaxed))
        return;
    uint64_t now_ns = v8_hooks->now_ns();
    v8_hooks->marker(v8_heap, "V8 names inlined functions", now_ns, now_ns);
}

/* Whether the draw may have been in code that folds allocations: then V8 has charged any of the functions that were inlined there. The
 * code is that of the innermost function of a script. */
static bool is_in_old_code(const struct v8_inlined *inlined, const struct draw *draw)
{
    const struct v8_frame *frames = inlined->frames + draw->frames;
    size_t innermost = 0;
    while (innermost < draw->depth && frames[innermost].script == 0)
        innermost++;
    return innermost < draw->depth && draw->begin_us < frames[innermost].old_until_us;
}

/* Many draws are in old code, although V8 has had time to compile it again. */
static void note_old_code(const struct v8_inlined *inlined, size_t old, size_t all)
{
    enum { SHARE = 16, COMPILING_US = 2000 * 1000 };
    if (old == 0 || old <= all / SHARE || v8_now_us() < inlined->sampler->older->begin_us + COMPILING_US ||
        atomic_exchange_explicit(&has_old, true, memory_order_relaxed))
        return;
    uint64_t now_ns = v8_hooks->now_ns();
    v8_hooks->marker(v8_heap, "V8 runs code from before the attach", now_ns, now_ns);
}

/* Reports the objects of all draws that have been read. */
static void conclude(struct v8_inlined *inlined)
{
    struct joined_stack stack;
    struct joined_named named[CPU_DEPTH];
    size_t complete = 0, all = 0, old = 0;
    for (size_t i = 0; i < inlined->read; i++) {
        const struct draw *draw = &inlined->draws[i];
        if (draw->sample.interval == 0)
            continue;
        bool is_old = is_in_old_code(inlined, draw);
        size_t depth = is_old ? 0 : walk_named(inlined, draw->node, named);
        bool is_complete = v8_join_stacks(&stack, inlined->frames + draw->frames, draw->depth, named, depth);
        old += is_old;
        all += !is_old;
        complete += !is_old && is_complete;
        v8_sampler_tell_late(inlined->sampler, &draw->sample, stack.frames, stack.depth);
    }
    note_that_names_are_known(complete, all);
    note_old_code(inlined, old, all);
    /* What was drawn during the reading has to wait, and its stack is in a profile that goes. */
    size_t rest = inlined->count - inlined->read;
    memmove(inlined->draws, inlined->draws + inlined->read, rest * sizeof inlined->draws[0]);
    for (size_t i = 0; i < rest; i++)
        inlined->draws[i].node = NULL;
    inlined->count = rest;
    inlined->read = inlined->frames_used = 0;
}

static const void *title_of(const struct v8_inlined *inlined)
{
    return v8.new_string(inlined->isolate, "a", NORMAL_STRING, 1);
}

static void start(struct v8_inlined *inlined)
{
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    inlined->is_recorded = v8.start_cpu_profile(inlined->cpu_profiler, title_of(inlined), true) == 0;
    shim_quiet_end(before);
    inlined->begin_us = v8_now_us();
}

/* Stops the profile, and tells what waited for it. */
static void stop(struct v8_inlined *inlined)
{
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    void *profile = inlined->is_recorded ? v8.stop_cpu_profile(inlined->cpu_profiler, title_of(inlined)) : NULL;
    if (profile != NULL)
        find_nodes(inlined, profile);
    shim_quiet_end(before);
    conclude(inlined);
    before = shim_quiet_begin(shim_services.counters());
    if (profile != NULL)
        v8.delete_cpu_profile(profile);
    shim_quiet_end(before);
    inlined->is_recorded = false;
}

void v8_inlined_turn(struct v8_inlined *inlined, bool at_once)
{
    int64_t now = v8_now_us(), pause_us = (now - inlined->first_us) / PAUSE_SHARE;
    if (pause_us < LEAST_PAUSE_US)
        pause_us = LEAST_PAUSE_US;
    if (pause_us > MOST_PAUSE_US)
        pause_us = MOST_PAUSE_US;
    if (inlined->read == 0 || (!at_once && now - inlined->begin_us < pause_us))
        return;
    stop(inlined);
    start(inlined);
}

/* ---- begin and end ---- */

struct v8_inlined *v8_inlined_begin(struct v8_sampler *sampler, void *isolate)
{
    struct v8_inlined *inlined = memory_map(sizeof *inlined);
    if (inlined == NULL)
        return NULL;
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    inlined->cpu_profiler = v8.cpu_profiler_new(isolate, DEBUG_NAMING, EAGER_LOGGING);
    v8.set_cpu_interval(inlined->cpu_profiler, SIGNAL_US);
    shim_quiet_end(before);
    inlined->isolate = isolate;
    inlined->sampler = sampler;
    start(inlined);
    inlined->first_us = inlined->begin_us;
    sampler->draws.on_draw = on_draw;
    sampler->draws.user = inlined;
    return inlined;
}

void v8_inlined_end(struct v8_inlined *inlined)
{
    inlined->sampler->draws.on_draw = NULL;
    stop(inlined);
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    v8.cpu_profiler_dispose(inlined->cpu_profiler);
    shim_quiet_end(before);
    munmap(inlined, sizeof *inlined);
}
