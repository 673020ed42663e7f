/* Where .NET's heap is.
 *
 * Samples are known by keys, so nothing else shows which memory the collector keeps for itself: garbage, and regions that are
 * free. It takes its memory in regions, and reserves addresses for all of them when it starts, so what was a region once never
 * belongs to anybody else. The runtime names the region of an object: of every sampled one, and of those that a collection has
 * left. */
#define _GNU_SOURCE
#include "dotnet.h"

/* More than these are not learnt: neighbours are one range. */
#define RANGES 4096

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static clr_object info;

/* Only ever grow, and are read at any time. */
static struct range {
    _Atomic(uintptr_t) start, end;
} ranges[RANGES];
static _Atomic(uint32_t) count;

/* Whether a thread is adding one. The runtime may have stopped it, so nobody waits: whatever is missed is learnt later. */
static _Atomic(bool) is_adding;

static bool is_known(uintptr_t start, uintptr_t end)
{
    uint32_t known = atomic_load_explicit(&count, memory_order_acquire);
    for (uint32_t i = 0; i < known; i++)
        if (atomic_load_explicit(&ranges[i].start, memory_order_relaxed) <= start &&
            end <= atomic_load_explicit(&ranges[i].end, memory_order_relaxed))
            return true;
    return false;
}

/* By the thread that adds. Neighbours are one range. */
static void add(uintptr_t start, uintptr_t end)
{
    uint32_t known = atomic_load_explicit(&count, memory_order_relaxed), i = 0;
    if (start >= end || is_known(start, end))
        return;
    for (; i < known; i++) {
        uintptr_t from = atomic_load_explicit(&ranges[i].start, memory_order_relaxed);
        uintptr_t to = atomic_load_explicit(&ranges[i].end, memory_order_relaxed);
        if (end < from || to < start)
            continue;
        start = from < start ? from : start;
        end = end < to ? to : end;
        break;
    }
    if (i == RANGES)
        return;
    atomic_store_explicit(&ranges[i].start, start, memory_order_relaxed);
    atomic_store_explicit(&ranges[i].end, end, memory_order_relaxed);
    if (i == known)
        atomic_store_explicit(&count, known + 1, memory_order_release);
    hooks->heap_range(heap, i, start, end);
}

void dotnet_ranges_add(const struct clr_range *region)
{
    uintptr_t start = region->start, end = start + region->reserved;
    if (LIKELY(is_known(start, end)) || !ALLOCSAMPLE_HAS(hooks, heap_range) ||
        atomic_exchange_explicit(&is_adding, true, memory_order_acquire))
        return;
    add(start, end);
    atomic_store_explicit(&is_adding, false, memory_order_release);
}

void dotnet_ranges_find(uintptr_t object)
{
    struct clr_range region = {0};
    if (UNLIKELY(!is_known(object, object + 1)) &&
        CLR(info, INFO_OBJECT_GENERATION, (clr_object, uintptr_t, struct clr_range *), object, &region) >= 0)
        dotnet_ranges_add(&region);
}

void dotnet_ranges_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, clr_object the_info)
{
    hooks = the_hooks;
    heap = the_heap;
    info = the_info;
}
