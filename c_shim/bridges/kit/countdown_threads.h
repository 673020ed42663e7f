/* Countdowns of threads: each thread has one for a heap, from its first block to its end. */
#ifndef ALLOCSAMPLE_BRIDGES_COUNTDOWN_THREADS_H
#define ALLOCSAMPLE_BRIDGES_COUNTDOWN_THREADS_H

#include "kit/countdown.h"

#include <pthread.h>

/* The threads of one heap. */
struct countdown_threads {
    const allocsample_hooks *hooks;
    allocsample_heap *heap;
    pthread_key_t key;
};

/* Before any of them joins; false: they cannot. */
HIDDEN bool countdown_threads_prepare(struct countdown_threads *threads, const allocsample_hooks *hooks,
                                      allocsample_heap *heap);

/* Begins the calling thread's countdown, which is thread-local. It ends, and is zero again, when the thread does. Where too
 * many threads have one, none of this one's blocks is sampled. */
HIDDEN void countdown_join(const struct countdown_threads *threads, struct countdown *countdown);

#endif
