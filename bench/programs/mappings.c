/* Calls that change mappings, at the bottom of a stack of chosen depth, and prints nanoseconds of the fastest round for each pair.
 *
 * mappings KIND DEPTH ROUNDS PAIRS: KIND is `map` (mmap and munmap of 64 KiB, with one page touched), `commit` (mprotect of 64
 * KiB in reserved memory to usable and back), `rights` (mprotect of usable memory, to read-only and back) or `discard` (two
 * calls of madvise). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define BYTES (64 << 10)

static char *reserved, *usable;

static void pair(char kind)
{
    switch (kind) {
    case 'm': {
        char *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *(volatile char *)at = 1;
        munmap(at, BYTES);
        break;
    }
    case 'c':
        mprotect(reserved, BYTES, PROT_READ | PROT_WRITE);
        mprotect(reserved, BYTES, PROT_NONE);
        break;
    case 'r':
        mprotect(usable, BYTES, PROT_READ);
        mprotect(usable, BYTES, PROT_READ | PROT_WRITE);
        break;
    default:
        madvise(usable, BYTES, MADV_DONTNEED);
        madvise(usable, BYTES, MADV_DONTNEED);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* What follows the call keeps it from being a jump. */
__attribute__((noinline)) static double descend(int levels, char kind, int pairs)
{
    double took;
    if (levels > 0) {
        took = descend(levels - 1, kind, pairs);
    } else {
        double begin = now();
        for (int i = 0; i < pairs; i++)
            pair(kind);
        took = (now() - begin) / pairs;
    }
    __asm__ volatile("" ::: "memory");
    return took;
}

int main(int count, char **arguments)
{
    if (count < 5)
        return 2;
    int depth = atoi(arguments[2]), rounds = atoi(arguments[3]), pairs = atoi(arguments[4]);
    reserved = mmap(NULL, 8 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    usable = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double best = 1e18;
    for (int i = 0; i < rounds; i++) {
        double took = descend(depth, arguments[1][0], pairs);
        best = took < best ? took : best;
    }
    printf("%.0f\n", best);
    return 0;
}
