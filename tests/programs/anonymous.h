// How much anonymous memory a program has, as the kernel counts it.
#ifndef ANONYMOUS_H
#define ANONYMOUS_H

#include <stdio.h>

static long anonymous_kib(void) {
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Anonymous: %ld kB", &kib) == 1) break;
    if (file != NULL) fclose(file);
    return kib;
}

#endif
