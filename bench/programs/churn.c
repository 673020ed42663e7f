/* Replaces random objects of a large working set, beside blocks that are so large that many of them are samples.
 *
 * churn OBJECTS REPLACEMENTS LARGE LARGE_BYTES: holds OBJECTS objects of 64 to 191 bytes, and LARGE blocks of
 * LARGE_BYTES that nobody writes to. Measured are the replacements: a free and a malloc each. With large blocks of
 * half the sampling interval some 40 % are live samples, while the objects themselves are hardly ever sampled. */
#include "work.h"

#include <malloc.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: churn OBJECTS REPLACEMENTS LARGE LARGE_BYTES\n");
        return 2;
    }
    size_t objects = strtoul(argv[1], NULL, 0);
    long replacements = atol(argv[2]);
    size_t large = strtoul(argv[3], NULL, 0);
    size_t large_bytes = strtoul(argv[4], NULL, 0);
    /* On the heap, not each in a mapping of its own, of which there cannot be so many. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 64 << 20);
    uint64_t random = 88172645463325252u;
    char **held = calloc(objects, sizeof *held);
    char **held_large = calloc(large + 1, sizeof *held_large);
    if (held == NULL || held_large == NULL)
        return 1;
    /* Between the objects, as in a program: their pages are each other's neighbours. */
    for (size_t i = 0, next_large = 0; i < objects; i++) {
        for (; next_large * objects < i * large; next_large++)
            if ((held_large[next_large] = malloc(large_bytes)) == NULL) {
                fprintf(stderr, "churn: no memory for the large blocks\n");
                return 1;
            }
        held[i] = malloc(64 + next_random(&random) % 128);
        held[i][0] = 1;
    }
    /* What came of the filling is done by then: a profiler's thread that writes some ten thousand samples may share a core. */
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    double start_s = thread_cpu_s();
    for (long i = 0; i < replacements; i++) {
        uint64_t drawn = next_random(&random);
        char **place = &held[drawn % objects];
        free(*place);
        *place = malloc(64 + (drawn >> 40) % 128);
        (*place)[0] = 1;
    }
    tell_cpu_s(thread_cpu_s() - start_s);
    return 0;
}
