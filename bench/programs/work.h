/* What the programs of the benchmark share: random numbers, and the CPU time of what is measured. */
#ifndef WORK_H
#define WORK_H

#include <stdint.h>
#include <stdio.h>
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

/* The line that bench/run.py looks for: what the measured part cost this thread, without start and end. */
static inline void tell_cpu_s(double seconds)
{
    printf("cpu_s %.9f\n", seconds);
}

#endif
