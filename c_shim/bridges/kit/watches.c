/* See watches.h. */
#define _GNU_SOURCE
#include "kit/watches.h"
#include "kit/memory.h"

/* Samples that live at once; beyond, deaths are not noticed. */
#define WATCHES (1u << 20)
/* Keys are multiples of it: each is in a byte of its own of the filter that `freed` asks first. */
#define KEY_STEP 128

bool watches_make(struct watches *watches)
{
    watches->all = memory_map(WATCHES * sizeof *watches->all);
    return watches->all != NULL;
}

static uint32_t end_of(struct watches *watches)
{
    uint32_t end = atomic_load_explicit(&watches->used, memory_order_acquire);
    return end < WATCHES ? end : WATCHES;
}

static bool take(struct watch *watch)
{
    uint32_t expected = WATCH_FREE;
    return atomic_compare_exchange_strong_explicit(&watch->state, &expected, WATCH_TAKEN, memory_order_acquire,
                                                   memory_order_relaxed);
}

struct watch *watches_take(struct watches *watches)
{
    uint32_t end = end_of(watches);
    uint32_t index = atomic_load_explicit(&watches->first_free, memory_order_relaxed);
    for (; index < end; index++)
        if (take(&watches->all[index]))
            break;
    if (index >= end) {
        index = atomic_fetch_add_explicit(&watches->used, 1, memory_order_acq_rel);
        if (index >= WATCHES) {
            atomic_fetch_sub_explicit(&watches->used, 1, memory_order_acq_rel);
            return NULL;
        }
        /* Another thread may have taken it. */
        if (!take(&watches->all[index]))
            return NULL;
    }
    atomic_store_explicit(&watches->first_free, index + 1, memory_order_relaxed);
    return &watches->all[index];
}

uintptr_t watches_key(struct watches *watches, const struct watch *watch)
{
    uint64_t index = watch == NULL
                         ? WATCHES + atomic_fetch_add_explicit(&watches->unwatched, 1, memory_order_relaxed)
                         : (uint64_t)(watch - watches->all);
    return (index + 1) * KEY_STEP;
}

void watches_begin(struct watch *watch, uintptr_t handle)
{
    watch->handle = handle;
    atomic_store_explicit(&watch->state, WATCHED, memory_order_release);
}

void watches_give_back(struct watches *watches, struct watch *watch)
{
    if (watch == NULL)
        return;
    uint32_t index = (uint32_t)(watch - watches->all);
    atomic_store_explicit(&watch->state, WATCH_FREE, memory_order_release);
    if (index < atomic_load_explicit(&watches->first_free, memory_order_relaxed))
        atomic_store_explicit(&watches->first_free, index, memory_order_relaxed);
}

void watches_each(struct watches *watches, uint32_t oldest, watch_visitor *visit)
{
    uint32_t end = end_of(watches);
    for (uint32_t i = 0; i < end; i++) {
        uint32_t state = atomic_load_explicit(&watches->all[i].state, memory_order_acquire);
        if (state >= WATCHED && state <= WATCHED + oldest)
            visit(&watches->all[i], state - WATCHED);
    }
}
