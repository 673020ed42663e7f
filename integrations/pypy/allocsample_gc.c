/* RPython's collector as a host of the hook ABI: the part that is in C. */
#include "allocsample_gc.h"
#include "allocsample.h"

enum { SURVIVED = 1, OLD, LARGE, PINNED };
enum { SCANNING, MARKING, SWEEPING, FINALIZING, STATES };
enum { BATCH = 64, TYPES = 1 << 16 };

static const allocsample_hooks *agent; /* NULL: nobody profiles us, or nobody was looked for */
static allocsample_heap *heap;
static allocsample_nursery nursery;
static uintptr_t stood; /* where `free` stood when the nursery was left */
static uint64_t minor_collections, major_collections;

static void find_agent(void)
{
    agent = allocsample_find();
    if (agent == NULL)
        return;
    heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_NURSERY, .name = "rpython"});
    if (heap == NULL) {
        agent = NULL;
        return;
    }
    agent->define_statistic(heap, SURVIVED, "survived", "bytes");
    agent->define_statistic(heap, OLD, "old objects", "bytes");
    agent->define_statistic(heap, LARGE, "large objects", "bytes");
    agent->define_statistic(heap, PINNED, "pinned objects", "count");
}

/* ---- allocation ---- */

void rpy_allocsample_leave(void *free)
{
    stood = (uintptr_t)free;
}

void *rpy_allocsample_enter(void *free, void *top)
{
    static int was_looked_for;
    uintptr_t limit = (uintptr_t)top;
    if (!was_looked_for) {
        was_looked_for = 1;
        find_agent();
        if (agent != NULL)
            limit = agent->nursery_begin(heap, &nursery, (uintptr_t)free, (uintptr_t)top);
    } else if (agent != NULL) {
        limit = agent->nursery_sync(heap, &nursery, stood, (uintptr_t)free, (uintptr_t)top);
    }
    stood = (uintptr_t)free;
    return (void *)limit;
}

void *rpy_allocsample_point(void *object, long size, void *top)
{
    if (agent == NULL)
        return top;
    return (void *)agent->nursery_point(heap, &nursery, (uintptr_t)object, (uint64_t)size, (uintptr_t)top, 0);
}

/* ---- types ---- */

static const char *names;
static long names_count;

/* Types are named when their first sample is. A program has thousands, most of which it never samples. */
static allocsample_type type_of(long type)
{
    static unsigned char is_defined[TYPES / 8];
    if (type < 0 || type >= names_count || type >= TYPES)
        return 0;
    if (!(is_defined[type / 8] & 1 << type % 8)) {
        is_defined[type / 8] |= (unsigned char)(1 << type % 8);
        const char *name = names;
        for (long at = 0; at < type; at++)
            while (*name++ != '\0')
                ;
        agent->define_type(heap, (allocsample_type)type + 1, name, NULL);
    }
    return (allocsample_type)type + 1;
}

void rpy_allocsample_names(char *text, long count)
{
    names = text;
    names_count = count;
}

void *rpy_allocsample_outside(void *object, long size, long type, void *free, void *limit)
{
    uintptr_t new_limit = (uintptr_t)limit;
    if (agent != NULL)
        agent->alloc(heap, &nursery, (uintptr_t)object, (uint64_t)size, type_of(type), (uintptr_t)free, &new_limit);
    return (void *)new_limit;
}

/* ---- survival ---- */

static allocsample_pending asked[BATCH];
static allocsample_resolution answers[BATCH];
static size_t asked_count, asked_at, answers_count;
static uint64_t cursor;

void *rpy_allocsample_next(long kind)
{
    if (agent == NULL)
        return NULL;
    allocsample_nursery *of = kind == ALLOCSAMPLE_MINOR ? &nursery : NULL;
    if (asked_at == asked_count) {
        uint64_t number = (kind == ALLOCSAMPLE_MINOR ? minor_collections : major_collections) + 1;
        if (answers_count > 0)
            agent->resolve(heap, of, (uint32_t)kind, answers, answers_count, number);
        asked_at = answers_count = 0;
        asked_count = agent->pending(heap, of, (uint32_t)kind, asked, BATCH, &cursor);
        if (asked_count == 0) {
            cursor = 0;
            return NULL;
        }
    }
    return (void *)asked[asked_at++].address;
}

void rpy_allocsample_answer(void *now, long type, long fate)
{
    const allocsample_pending *sample = &asked[asked_at - 1];
    answers[answers_count++] = (allocsample_resolution){.id = sample->id,
                                                        .slot = sample->slot,
                                                        .address = (uintptr_t)now,
                                                        .type = type_of(type),
                                                        .fate = (uint32_t)fate};
}

/* ---- collections ---- */

static uint64_t minor_begin, step_begin, cycle_begin;
static long step_state;

static void collected(uint32_t kind, uint64_t number, uint64_t begin, const uint64_t *values, uint32_t count)
{
    agent->gc(heap, &(allocsample_gc){.size = sizeof(allocsample_gc),
                                      .kind = kind,
                                      .id = number,
                                      .begin_ns = begin,
                                      .end_ns = agent->now_ns(),
                                      .statistics = count,
                                      .values = values});
}

void rpy_allocsample_minor_begin(void)
{
    if (agent != NULL)
        minor_begin = agent->now_ns();
}

void rpy_allocsample_minor_end(long survived, long old, long large, long pinned)
{
    if (agent == NULL)
        return;
    const uint64_t values[] = {SURVIVED, (uint64_t)survived, OLD,    (uint64_t)old,
                               LARGE,    (uint64_t)large,    PINNED, (uint64_t)pinned};
    collected(ALLOCSAMPLE_MINOR, ++minor_collections, minor_begin, values, 4);
}

void rpy_allocsample_step_begin(long from)
{
    if (agent == NULL)
        return;
    step_state = from;
    step_begin = agent->now_ns();
    if (from == SCANNING)
        cycle_begin = step_begin;
}

/* The last step stands for the whole major collection, so that their number is right and no time counts twice. */
void rpy_allocsample_step_end(long to, long old, long large)
{
    static const char *const states[STATES] = {"scanning", "marking", "sweeping", "finalizing"};
    if (agent == NULL || step_begin == 0)
        return;
    const uint64_t values[] = {OLD, (uint64_t)old, LARGE, (uint64_t)large};
    int is_last = step_state == FINALIZING;
    major_collections += (uint64_t)is_last;
    collected(is_last ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MAJOR_STEP, major_collections + !is_last, step_begin, values, 2);
    if (to != step_state && to >= 0 && to < STATES)
        agent->phase(heap, states[to]);
    if (is_last && cycle_begin != 0)
        agent->marker(heap, "major cycle", cycle_begin, agent->now_ns());
    step_begin = 0;
}
