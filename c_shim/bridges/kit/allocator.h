/* Heaps of allocators beside malloc: each block is counted down on its thread, and told when it is due.
 *
 * The entries below are called with no lock of the allocator's held, after a block was allocated and before one is freed. */
#ifndef ALLOCSAMPLE_BRIDGES_ALLOCATOR_H
#define ALLOCSAMPLE_BRIDGES_ALLOCATOR_H

#include "kit/countdown.h"

/* In the life of a process, those of unloaded libraries included: no number is used twice, as threads keep their countdowns. */
#define ALLOCATORS 4

struct allocator {
    const char *what;
    uintptr_t key; /* a function that only this allocator has */
    allocsample_heap *registered;
    _Atomic(allocsample_heap *) heap; /* NULL: not sampled now */
    bool is_numbered;
    size_t number;
};

/* What a thread has of each allocator. */
struct allocator_thread {
    _Atomic(bool) taken;
    struct countdown countdowns[ALLOCATORS];
    bool is_passing[ALLOCATORS]; /* the counter counts nothing */
    allocsample_nursery nurseries[ALLOCATORS];
};
/* Bytes of each allocator that the calling thread can still allocate until one is to be told. Its countdown follows in
 * allocator_count; 0 until the thread has one. */
extern HIDDEN _Thread_local uint64_t allocator_left[ALLOCATORS] __attribute__((tls_model("initial-exec")));

/* Gives an allocator its number before it is registered, for code that counts by then. False: there is none left. Any thread. */
HIDDEN bool allocator_take_number(struct allocator *allocator);
/* It is not joined after all. Its number can be taken again if no thread has counted by it. */
HIDDEN void allocator_return_number(struct allocator *allocator, bool has_counted);
/* Registers the heap "WHAT in FILE", which is not sampled yet. False: there are too many, or there is no memory. */
HIDDEN bool allocator_register(struct allocator *allocator, const allocsample_hooks *hooks, const char *file);
/* Whether a bridge has taken such an allocator, with a key between these addresses. */
HIDDEN bool allocator_is_taken(const char *what, uintptr_t start, uintptr_t end);
HIDDEN void allocator_start(struct allocator *allocator);
/* After a detach. */
HIDDEN void allocator_resume(struct allocator *allocator);
HIDDEN void allocator_stop(struct allocator *allocator);
/* It is gone, with all its blocks. */
HIDDEN void allocator_unregister(struct allocator *allocator);
/* In a forked child: other threads' countdowns are nobody's. */
HIDDEN void allocators_after_fork_in_child(void);

HIDDEN void allocator_count(struct allocator *allocator, allocsample_heap *heap, void *block, size_t size);
/* The heap is not sampled now, and the thread's counter has run out. */
HIDDEN void allocator_pass(struct allocator *allocator);
HIDDEN void allocator_tell_freed(allocsample_heap *heap, void *block);

static inline void allocator_allocated(struct allocator *allocator, void *block, size_t size)
{
    allocsample_heap *heap = atomic_load_explicit(&allocator->heap, memory_order_relaxed);
    uint64_t *left = &allocator_left[allocator->number];
    if (UNLIKELY(heap == NULL) || LIKELY(!shim_charge_to(left, size)))
        return;
    *left += shim_charged(size);
    allocator_count(allocator, heap, block, size);
}

static inline void allocator_freed(struct allocator *allocator, void *block)
{
    allocsample_heap *heap = atomic_load_explicit(&allocator->heap, memory_order_relaxed);
    if (heap != NULL && shim_is_marked(shim_services.block_filter, block))
        allocator_tell_freed(heap, block);
}

#endif
