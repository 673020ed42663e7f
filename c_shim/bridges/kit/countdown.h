/* A heap whose blocks are told one by one, at the cost of a subtraction each.
 *
 * To the hook ABI the blocks of one owner (a thread, an interpreter) are a nursery that never ends, of which the bytes up
 * to the agent's limit are counted down. The block that passes it is told with its real address, as one outside of the
 * nursery. */
#ifndef ALLOCSAMPLE_BRIDGES_COUNTDOWN_H
#define ALLOCSAMPLE_BRIDGES_COUNTDOWN_H

#include "allocsample.h"
#include "bridge.h"

/* Where the endless nursery begins and ends. Its first limit can be where it begins, and must not be 0. */
#define COUNTDOWN_START 1
#define COUNTDOWN_TOP (UINT64_C(1) << 62)

/* While the heap is off nothing is due up to the end. Its owner looks again after so many bytes, or would not hear that it is on. */
#define COUNTDOWN_LOOK (UINT64_C(1) << 20)

/* Zero until it begins. */
struct countdown {
    uint64_t left;  /* bytes until the limit: the nursery's `free` is limit - left */
    uint64_t limit; /* 0: not begun */
    allocsample_nursery *nursery; /* NULL: none of these blocks is sampled */
};

/* Present position of the nursery. */
static inline uint64_t countdown_free(const struct countdown *countdown)
{
    return countdown->limit - countdown->left;
}

static inline void countdown_go_on(struct countdown *countdown, uint64_t free, uint64_t limit)
{
    if (limit == COUNTDOWN_TOP && countdown->nursery != NULL)
        limit = free + COUNTDOWN_LOOK;
    countdown->limit = limit;
    countdown->left = limit - free;
}

static inline void countdown_begin(struct countdown *countdown, const allocsample_hooks *hooks, allocsample_heap *heap,
                                   allocsample_nursery *nursery)
{
    countdown->nursery = nursery;
    countdown_go_on(countdown, COUNTDOWN_START,
                    nursery == NULL ? COUNTDOWN_TOP
                                    : hooks->nursery_begin(heap, nursery, COUNTDOWN_START, COUNTDOWN_TOP));
}

/* Subtracts the charge of `size`; true if it borrowed. Then it is to be given back, and taken anew or told. */
static inline bool countdown_charge(struct countdown *countdown, size_t size)
{
    return shim_charge_to(&countdown->left, size);
}

static inline void countdown_give_back(struct countdown *countdown, size_t size)
{
    countdown->left += shim_charged(size);
}

/* Takes the charge of a block that does not pass the limit; false for one that does. */
static inline bool countdown_take(struct countdown *countdown, size_t size)
{
    bool has_room = shim_charged(size) <= countdown->left;
    if (has_room)
        countdown->left -= shim_charged(size);
    return has_room;
}

/* The block at `address` passes the limit. Its sample, if it is one; it may be none. */
static inline allocsample_id countdown_tell(struct countdown *countdown, const allocsample_hooks *hooks, allocsample_heap *heap,
                                  uintptr_t address, size_t size, allocsample_type type)
{
    uintptr_t limit = countdown->limit;
    uint64_t free = countdown_free(countdown);
    allocsample_id id =
        hooks->alloc(heap, countdown->nursery, address, shim_charged(size), type, free, &limit);
    countdown_go_on(countdown, free, limit);
    return id;
}

#endif
