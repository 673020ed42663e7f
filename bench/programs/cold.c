/* A malloc and a free, 25 calls deep, behind each sweep through memory: how long they take when the program has used the
 * caches for itself.
 *
 * cold MEBIBYTES PASSES: sweeps through so many before each pair; 0 for none. Tells the median pair's time, for each of
 * the pairs. */
#include "work.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, DEPTH = 25 };
/* tcmalloc looks at its settings only after 16 MiB. */
static const size_t FIRST_BYTES = 64 << 20;

static volatile char *swept;
static size_t bytes;
static long passes;
static double *seconds;
static void *volatile kept;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static __attribute__((noinline)) void pair(void)
{
    char *block = malloc(64);
    kept = block;
    free(block);
}

static __attribute__((noinline)) int descend(int depth)
{
    volatile char frame[48];
    frame[0] = (char)depth;
    if (depth > 0)
        return descend(depth - 1) + frame[0];
    for (long pass = 0; pass < passes; pass++) {
        for (size_t at = 0; at < bytes; at += LINE)
            swept[at]++;
        double since_s = now_s();
        pair();
        seconds[pass] = now_s() - since_s;
    }
    return frame[0];
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: cold MEBIBYTES PASSES\n");
        return 2;
    }
    bytes = strtoul(argv[1], NULL, 0) << 20;
    passes = atol(argv[2]);
    swept = malloc(bytes + LINE);
    seconds = malloc((size_t)(passes + 1) * sizeof *seconds);
    if (swept == NULL || seconds == NULL)
        return 1;
    memset((char *)swept, 1, bytes + LINE);
    for (size_t taken = 0; taken < FIRST_BYTES; taken += 1 << 20) {
        kept = malloc(1 << 20);
        free(kept);
    }
    descend(DEPTH);
    qsort(seconds, (size_t)passes, sizeof *seconds, ascending);
    tell_cpu_s(seconds[passes / 2] * (double)passes);
    return 0;
}
