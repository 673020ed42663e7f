/* Fills a heap, and tells how large the process has become.
 *
 * heap MEBIBYTES: blocks of 16 bytes to 4 KiB, 765 bytes on average; all are written to, none is
 * freed. Prints the resident set of the whole process. */
#include "work.h"

#include <stdlib.h>
#include <string.h>

static long resident_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "VmRSS: %ld", &kib) == 1)
            break;
    if (status != NULL)
        fclose(status);
    return kib;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: heap MEBIBYTES\n");
        return 2;
    }
    size_t wanted = strtoul(argv[1], NULL, 0) << 20;
    uint64_t random = 88172645463325252u;
    long blocks = 0;
    for (size_t filled = 0; filled < wanted; blocks++) {
        uint64_t drawn = next_random(&random);
        /* 16 * 2^0..2^7, and up to as much again. */
        size_t base = (size_t)16 << (drawn % 8);
        size_t size = base + (drawn >> 32) % base;
        char *block = malloc(size);
        if (block == NULL)
            return 1;
        memset(block, 1, size);
        filled += size;
    }
    printf("blocks %ld\nresident_kib %ld\n", blocks, resident_kib());
    return 0;
}
