/* Watches over sampled objects whose address changes: each has a weak handle of the runtime, and a number that stands for the
 * object.
 *
 * Nobody waits for anybody here: a runtime may have stopped any other thread anywhere. */
#ifndef ALLOCSAMPLE_BRIDGES_WATCHES_H
#define ALLOCSAMPLE_BRIDGES_WATCHES_H

#include "bridge.h"

struct watch {
    _Atomic(uint32_t) state; /* WATCH_FREE, WATCH_TAKEN, or WATCHED + the object's generation */
    uintptr_t handle;
};

enum { WATCH_FREE = 0, WATCH_TAKEN = 1, WATCHED = 2 };

/* Zero until it is made. */
struct watches {
    struct watch *all;           /* NULL: not made */
    _Atomic(uint32_t) used;      /* watches beyond have never been taken */
    _Atomic(uint32_t) first_free; /* a hint: before it, few are free */
    _Atomic(uint64_t) unwatched;
};

/* Takes memory of its own for 1,048,576 watches, which is touched as it is needed. False: there is none. */
HIDDEN bool watches_make(struct watches *watches);

/* Takes a free watch; NULL: too many objects are watched. Any thread. */
HIDDEN struct watch *watches_take(struct watches *watches);

/* A number that stands for the object. Without a watch: one that never dies. */
HIDDEN uintptr_t watches_key(struct watches *watches, const struct watch *watch);

/* The watched object is a sample, and young. */
HIDDEN void watches_begin(struct watch *watch, uintptr_t handle);

/* The object is found to be in this generation. */
static inline void watches_move(struct watch *watch, uint32_t generation)
{
    atomic_store_explicit(&watch->state, WATCHED + generation, memory_order_relaxed);
}

/* Returns a watch. NULL does nothing. */
HIDDEN void watches_give_back(struct watches *watches, struct watch *watch);

typedef void watch_visitor(struct watch *watch, uint32_t generation);

/* Visits the watches over objects of generations up to `oldest`. */
HIDDEN void watches_each(struct watches *watches, uint32_t oldest, watch_visitor *visit);

#endif
