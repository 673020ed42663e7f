/* Objects that the runtime chooses by itself, and reports in an event.
 *
 * From .NET 10 on it draws every byte with probability 1/102,400 (AllocationSampled).
 *
 * Earlier versions count, for every heap of the collector, the memory that it hands out: to threads in contexts of about 8 KiB,
 * from which they take small objects, and to larger objects one by one. The object that makes the count pass 102,400 is reported
 * (AllocationTick), and the count starts again at 0. So if the count is M on average when that happens,
 *
 *     a small object of S bytes is reported with probability S / M: it starts a context with S / context, and that context
 *     passes the limit with context / M;
 *     a larger one of S bytes is, too: it does if the count before it is one of the last S that are below the limit.
 *
 * The count of an event is no weight. It contains all of the reported object, so large objects have both more reports and larger
 * counts: objects of 80 KB would count for a third too much.
 *
 * This is a systematic sample: its error is that of a random one only if the program does not repeat itself in step with the
 * count. Arrays that are not cleared break the rule for small objects, as they get no context: they are reported too rarely.
 *
 * Large objects are reported one by one also to a profiler that joins late, so we draw these ourselves. */
#define _GNU_SOURCE
#include "dotnet.h"
#include "kit/thinning.h"

#include <errno.h>
#include <string.h>

/* Contexts of 8 KiB pass the limit at the thirteenth. */
#define FIRST_MEAN (13 * 8192)
/* Of the last events: so many are the mean. */
#define MEAN_OF 32
/* The interval of ticks is the mean, rounded up to a multiple of this, so that it hardly ever changes. */
#define STEP 16384
/* No object is smaller. Some events of pinned objects leave so many bytes out. */
#define SMALLEST 24

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static clr_object info;

struct drawn {
    uintptr_t class, object;
    uint64_t size;
};

static void tell(const struct drawn *drawn, uint64_t interval)
{
    allocsample_frame frames[DOTNET_DEPTH];
    int before = errno;
    shim_mute();
    size_t count = dotnet_stack(frames);
    uint32_t type = dotnet_type(drawn->class);
    dotnet_ranges_find(drawn->object);
    shim_unmute();
    struct watch *watch = dotnet_watch_take();
    if (hooks->sampled_at(heap, dotnet_watch_key(watch), drawn->size, type, frames, count, interval) == ALLOCSAMPLE_NO_SAMPLE)
        dotnet_watch_give_back(watch);
    else
        dotnet_watch_begin(watch, drawn->object);
    errno = before;
}

/* The current interval. 0: sampling is off, although the runtime's events continue. */
static uint64_t asked_interval(void)
{
    allocsample_counters asked = {.size = sizeof asked};
    hooks->counters(heap, &asked);
    if (asked.is_on)
        return asked.interval;
    hooks->sampled_at(heap, 0, 0, 0, NULL, 0, 0);
    return 0;
}

static uint64_t next_number(void)
{
    static _Atomic(uint64_t) objects;
    return atomic_fetch_add_explicit(&objects, 1, memory_order_relaxed);
}

/* ---- what an event says ---- */

struct event {
    const uint8_t *next;
    size_t left;
};

/* False: the event is shorter than that. */
static bool take(struct event *event, void *value, size_t bytes)
{
    if (event->left < bytes)
        return false;
    memcpy(value, event->next, bytes);
    event->next += bytes;
    event->left -= bytes;
    return true;
}

static bool skip(struct event *event, size_t bytes)
{
    bool has = event->left >= bytes;
    event->next += has ? bytes : 0;
    event->left -= has ? bytes : 0;
    return has;
}

/* UTF-16 with a 0 at the end. */
static bool skip_text(struct event *event)
{
    uint16_t letter;
    do
        if (!take(event, &letter, sizeof letter))
            return false;
    while (letter != 0);
    return true;
}

/* The kind of heap (4 bytes), the runtime's number (2), the class, its name, the object's address and size, and the place of the
 * byte that was drawn. False: it is not that. */
static bool read_sampled(struct event event, struct drawn *drawn)
{
    return skip(&event, 6) && take(&event, &drawn->class, sizeof drawn->class) && skip_text(&event) &&
           take(&event, &drawn->object, sizeof drawn->object) && take(&event, &drawn->size, sizeof drawn->size);
}

enum kind { SMALL, LARGE, PINNED, KINDS };

/* The count in 4 bytes, the kind of heap (4), the runtime's number (2), the count (8), the class, its name, the heap's number (4),
 * the object's address and size. False: it is not that. */
static bool read_tick(struct event event, struct drawn *drawn, uint32_t *kind, uint64_t *counted)
{
    return skip(&event, 4) && take(&event, kind, sizeof *kind) && skip(&event, 2) && take(&event, counted, sizeof *counted) &&
           take(&event, &drawn->class, sizeof drawn->class) && skip_text(&event) && skip(&event, 4) &&
           take(&event, &drawn->object, sizeof drawn->object) && take(&event, &drawn->size, sizeof drawn->size) &&
           *kind < KINDS;
}

/* ---- .NET 10 and later ---- */

void dotnet_draw_sampled(const uint8_t *data, size_t bytes)
{
    struct drawn drawn;
    if (!read_sampled((struct event){data, bytes}, &drawn))
        return;
    drawn.size = dotnet_rounded(drawn.size);
    uint64_t asked = asked_interval();
    if (asked != 0 && thinning_keeps(next_number(), drawn.size, DOTNET_OWN_INTERVAL, asked))
        tell(&drawn, asked > DOTNET_OWN_INTERVAL ? asked : DOTNET_OWN_INTERVAL);
}

/* ---- .NET 7 to 9 ---- */

/* What was counted when an object of a kind was reported, on average. Threads may overwrite each other's. */
static _Atomic(uint64_t) means[KINDS];

/* Before this event, so that a weight does not depend on its own object. */
static uint64_t mean_of(enum kind kind, uint64_t counted)
{
    uint64_t mean = atomic_load_explicit(&means[kind], memory_order_relaxed);
    if (mean == 0)
        mean = FIRST_MEAN;
    atomic_store_explicit(&means[kind], mean + counted / MEAN_OF - mean / MEAN_OF, memory_order_relaxed);
    return mean;
}

/* With what probability the runtime reports an object. */
static double share_of_ticks(uint64_t size, uint64_t mean)
{
    return size > DOTNET_OWN_INTERVAL || size > mean ? 1 : (double)size / (double)mean;
}

void dotnet_draw_tick(const uint8_t *data, size_t bytes)
{
    struct drawn drawn;
    uint32_t kind;
    uint64_t counted;
    if (!read_tick((struct event){data, bytes}, &drawn, &kind, &counted) || kind == LARGE)
        return;
    drawn.size = drawn.size < SMALLEST ? SMALLEST : dotnet_rounded(drawn.size);
    uint64_t mean = mean_of(kind, counted), interval = asked_interval();
    if (interval == 0)
        return;
    /* Objects are thinned to the law of all heaps, which has fewer of the larger ones. */
    uint64_t shortest = (mean + STEP - 1) / STEP * STEP;
    interval = interval > shortest ? interval : shortest;
    if (thinning_coin(next_number()) * share_of_ticks(drawn.size, mean) < thinning_share(drawn.size, interval))
        tell(&drawn, interval);
}

void dotnet_draw_large(uintptr_t object, size_t size, uintptr_t class)
{
    struct clr_range range = {0};
    struct drawn drawn = {.class = class, .object = object, .size = size};
    uint64_t interval = asked_interval();
    /* One that is pinned is reported by its ticks. */
    if (interval != 0 && thinning_coin(next_number()) < thinning_share(size, interval) &&
        CLR(info, INFO_OBJECT_GENERATION, (clr_object, uintptr_t, struct clr_range *), object, &range) >= 0 &&
        range.generation == GENERATION_LARGE)
        tell(&drawn, interval);
}

void dotnet_draws_note(void)
{
    uint64_t now = hooks->now_ns();
    hooks->marker(heap, "note: this version of .NET reports about every 100 KiB which object it allocates, not at random: a figure can be off by more than its error",
                  now, now);
}

void dotnet_draws_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, clr_object the_info)
{
    hooks = the_hooks;
    heap = the_heap;
    info = the_info;
}
