/* Resumes a heap of the hook ABI when its process is attached to again. */
#ifndef ALLOCSAMPLE_BRIDGES_RESUME_H
#define ALLOCSAMPLE_BRIDGES_RESUME_H

#include "allocsample.h"

/* Sampling of the heap goes on, at the interval of malloc. */
static inline void resume_heap(const allocsample_hooks *hooks, allocsample_heap *heap)
{
    allocsample_status status = {.size = sizeof status};
    allocsample_counters counters = {.size = sizeof counters};
    hooks->counters(heap, &counters);
    if (hooks->process_status(&status) == ALLOCSAMPLE_OK && status.interval != 0 && status.interval != counters.interval)
        hooks->control(heap, ALLOCSAMPLE_SET_INTERVAL, status.interval);
    hooks->control(heap, ALLOCSAMPLE_START, 0);
}

#endif
