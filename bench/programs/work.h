/* What the programs of the benchmark share: random numbers, the CPU time of what is measured, and a first sample. */
#ifndef WORK_H
#define WORK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline double thread_cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The line that the benchmark looks for: what the measured part cost this thread, without start and end. */
static inline void tell_cpu_s(double seconds)
{
    printf("cpu_s %.9f\n", seconds);
}

/* Half a tebibyte that nobody touches: enough for a sample at each interval up to 64 GiB (all but one run in 3,000), so that a
 * profiler that is cheaper as long as it has taken none is measured as it is for the rest of its life. */
__attribute__((constructor)) static void be_sampled(void)
{
    for (int block = 0; block < 512; block++) {
        void *volatile gibibyte = malloc((size_t)1 << 30);
        free(gibibyte);
    }
}

#endif
