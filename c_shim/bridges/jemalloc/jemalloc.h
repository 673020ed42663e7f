/* Declarations shared by the parts of the jemalloc bridge. */
#ifndef ALLOCSAMPLE_BRIDGES_JEMALLOC_H
#define ALLOCSAMPLE_BRIDGES_JEMALLOC_H

#include "bridge.h"

/* Parts of a file's code on the way from jemalloc's entries to its hooks. */
#define JEMALLOC_RANGES 16

/* Functions that are called, with the names that follow the prefix. */
enum jemalloc_function {
    JEMALLOC_MALLCTL,
    JEMALLOC_MALLOC,
    JEMALLOC_MALLOCX,
    JEMALLOC_FREE,
    JEMALLOC_DALLOCX,
    JEMALLOC_SDALLOCX,
    JEMALLOC_FUNCTIONS,
};

struct jemalloc_range {
    uintptr_t start, end;
};

/* A jemalloc that is part of a loaded file. */
struct jemalloc_found {
    uintptr_t functions[JEMALLOC_FUNCTIONS]; /* 0: the linker has left it out */
    /* Where the file is mapped. */
    uintptr_t start, end;
    struct jemalloc_range code[JEMALLOC_RANGES];
    size_t ranges;
    /* The file's own name, cut if it is long. */
    char file[96];
};

/* Looks for jemallocs in the file that is mapped from `object` on, or in all files with code if that is 0, and calls `join`
 * with each. Files that `is_known` knows by where they are mapped are left out. Neither allocates nor takes a lock of libc's.
 *
 * The symbols come from the files, because most of these jemallocs have no dynamic symbols. The headers in memory are compared
 * with those in the file first: an address from another file must never be called. */
HIDDEN void jemalloc_search(uintptr_t object, bool (*is_known)(uintptr_t start),
                            void (*join)(const struct jemalloc_found *found));

#endif
