/* Allocates blocks with a million different stacks: many_sites BLOCKS. Nine in ten are freed while it runs. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))
#define DEPTH 20
#define SITES (1ul << DEPTH)
#define ALIVE (1ul << 20)

static volatile unsigned long calls;
static void *alive[ALIVE];

static void *left(unsigned long path, int depth, size_t bytes);
static void *right(unsigned long path, int depth, size_t bytes);

static inline void *next(unsigned long path, int depth, size_t bytes)
{
    if (depth == 0)
        return malloc(bytes);
    return path & 1 ? right(path >> 1, depth - 1, bytes) : left(path >> 1, depth - 1, bytes);
}

/* The counter behind the call keeps it from becoming a jump. */
static NOINLINE void *left(unsigned long path, int depth, size_t bytes)
{
    void *block = next(path, depth, bytes);
    calls++;
    return block;
}

static NOINLINE void *right(unsigned long path, int depth, size_t bytes)
{
    void *block = next(path, depth, bytes);
    calls += 2;
    return block;
}

int main(int argc, char **argv)
{
    unsigned long blocks = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    for (unsigned long i = 0; i < blocks; i++) {
        /* An odd factor visits each site once in a round. */
        unsigned long path = i * 2654435761ul % SITES;
        size_t bytes = 16 + i * 37 % 61 * 8;
        void **place = &alive[i % ALIVE];
        /* One in ten stays. */
        if (i % 10 != 0)
            free(*place);
        *place = next(path, DEPTH, bytes);
    }
    printf("%lu\n", calls);
    return 0;
}
