/* For all bridges: loaded objects by the kernel's list of mappings, which takes no lock of the loader's. */
#ifndef ALLOCSAMPLE_BRIDGES_OBJECTS_H
#define ALLOCSAMPLE_BRIDGES_OBJECTS_H

#include "bridge.h"

/* A file that is mapped with code, from its beginning on. */
struct object_file {
    uintptr_t start, end;
    uint64_t inode;
    const char *path;
};

typedef void object_visitor(void *argument, const struct object_file *file);

/* Calls `visit` with the file that is mapped from `start` on, or with all of them if that is 0. A file may be mapped and not yet be
 * loaded: an object whose code has run is; before `main` all are; else objects_is_loaded tells. */
HIDDEN void objects_each(uintptr_t start, object_visitor *visit, void *argument);

/* Whether the loader has loaded the object, and is done with it: it waits for others that load one. Takes the loader's lock. */
HIDDEN bool objects_is_loaded(uintptr_t start);

/* Where the object's program headers are in memory. */
HIDDEN const void *objects_headers(uintptr_t start);

#endif
