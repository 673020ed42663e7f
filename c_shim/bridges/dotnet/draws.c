/* Objects that the runtime chooses by itself, and reports in an event.
 *
 * From .NET 10 on it draws every byte with probability 1/102,400 (AllocationSampled). A longer interval is had by thinning. */
#define _GNU_SOURCE
#include "dotnet.h"
#include "kit/thinning.h"

#include <errno.h>
#include <string.h>

static const allocsample_hooks *hooks;
static allocsample_heap *heap;

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

/* The interval that is asked for now; 0: none, and the runtime goes on. */
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

void dotnet_draws_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    hooks = the_hooks;
    heap = the_heap;
}
