/* Pairs of malloc and free at the bottom of a stack of chosen depth, of which the top frames change each time.
 *
 * pairs SIZE PAIRS DEPTH CHANGED STACKS: with CHANGED 0 all pairs have one stack. Otherwise each pair descends CHANGED
 * frames anew along random branches: each of those frames has one of four return addresses. STACKS is how many different
 * ways down there are; 0: hardly any is gone twice. The descent is the program's own work, with and without a profiler.
 * pairs SIZE PAIRS DEPTH CHANGED STACKS THREADS: on each of so many threads. */
#include "work.h"

#include <pthread.h>
#include <stdlib.h>

static size_t block_bytes;
static long pair_count;
static int depth, changed;
static uint64_t stacks;

static inline void pair(void)
{
    void *volatile block = malloc(block_bytes);
    *(volatile char *)block = 1;
    free(block);
}

/* What comes after the call keeps it from being a jump, and functions of the same body from being one. */
#define AFTER_CALL(NAME) __asm__ volatile("# " NAME ::: "memory")

__attribute__((noinline)) static void branch_b(int levels, uint64_t path);

__attribute__((noinline)) static void branch_a(int levels, uint64_t path)
{
    if (levels == 0)
        pair();
    else if (path & 1)
        branch_a(levels - 1, path >> 1 | path << 63);
    else
        branch_b(levels - 1, path >> 1 | path << 63);
    AFTER_CALL("branch_a");
}

__attribute__((noinline)) static void branch_b(int levels, uint64_t path)
{
    if (levels == 0)
        pair();
    else if (path & 1)
        branch_a(levels - 1, path >> 1 | path << 63);
    else
        branch_b(levels - 1, path >> 1 | path << 63);
    AFTER_CALL("branch_b");
}

static inline uint64_t next_path(uint64_t *random)
{
    uint64_t path = next_random(random);
    if (stacks == 0)
        return path;
    /* A number below STACKS, spread over all bits: the fractions of the golden ratio. */
    return ((path >> 32) * stacks >> 32) * 0x9e3779b97f4a7c15u;
}

__attribute__((noinline)) static void work(uint64_t *random)
{
    if (changed == 0)
        for (long i = 0; i < pair_count; i++)
            pair();
    else
        for (long i = 0; i < pair_count; i++)
            branch_a(changed - 1, next_path(random));
}

__attribute__((noinline)) static void descend(int levels, uint64_t *random)
{
    if (levels <= 0)
        work(random);
    else
        descend(levels - 1, random);
    AFTER_CALL("descend");
}

static double cpu_s[64];

static void *thread(void *number)
{
    uint64_t random = 88172645463325252u + (uintptr_t)number;
    double start_s = thread_cpu_s();
    descend(depth - changed - 1, &random);
    cpu_s[(uintptr_t)number] = thread_cpu_s() - start_s;
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: pairs SIZE PAIRS DEPTH CHANGED STACKS [THREADS]\n");
        return 2;
    }
    block_bytes = strtoul(argv[1], NULL, 0);
    pair_count = atol(argv[2]);
    depth = atoi(argv[3]);
    changed = atoi(argv[4]);
    stacks = strtoul(argv[5], NULL, 0);
    uintptr_t threads = argc > 6 ? strtoul(argv[6], NULL, 0) : 0;
    if (threads > 64)
        return 2;
    pthread_t ids[64];
    for (uintptr_t i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, thread, (void *)i) != 0)
            return 1;
    for (uintptr_t i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    if (threads == 0)
        thread(0);
    double sum_s = 0;
    for (uintptr_t i = 0; i < 64; i++)
        sum_s += cpu_s[i];
    tell_cpu_s(sum_s);
    return 0;
}
