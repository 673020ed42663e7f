/* For bridges that read stacks in the machine's memory: what a walk needs, for several threads that walk at the same time.
 *
 * A walk takes a walker and keeps it to its end. A signal handler that allocates meanwhile takes another one. */
#ifndef ALLOCSAMPLE_BRIDGES_WALKERS_H
#define ALLOCSAMPLE_BRIDGES_WALKERS_H

#include "kit/foreign.h"
#include "kit/lock.h"

/* The beginning of a bridge's own walker, whose other fields it may keep from one walk to the next. */
struct walker {
    bridge_lock lock;
    struct foreign_lines lines;
};

/* Zero is the right initial value: none. */
struct walkers {
    void *first;
    size_t count, bytes; /* of each */
};

/* Takes memory for `count` walkers of `bytes` bytes, all zero, which is touched as it is needed. False: there is none. */
HIDDEN bool walkers_make(struct walkers *walkers, size_t count, size_t bytes);

/* A walk of the calling thread begins, which reads by `reader`. A thread gets the walker of its last walk if that is free. NULL: all
 * of them are at work. */
HIDDEN struct walker *walkers_begin(struct walkers *walkers, struct foreign_reader *reader);

HIDDEN void walkers_end(struct walker *walker);

/* Walks of the parent's other threads have no end here. */
HIDDEN void walkers_after_fork_in_child(struct walkers *walkers);

#endif
