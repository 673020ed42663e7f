/* PyPy as it is installed: what pypy.c and names.c share. */
#ifndef ALLOCSAMPLE_BRIDGES_PYPY_H
#define ALLOCSAMPLE_BRIDGES_PYPY_H

#include "allocsample.h"
#include "bridge.h"
#include "find.h"

/* An RPython string. */
struct pypy_string {
    uintptr_t header, hash;
    intptr_t length;
    char bytes[];
};

/* A library of PyPy in this process. */
struct pypy_library {
    const struct pypy_build *build;
    uintptr_t base, end;
    /* The calling thread's state: the library was loaded with the program, so that it is as far from each thread's own storage.
     * NULL: there is none, or the build has a key for it. */
    const void *thread;
    /* Its build is in a table; otherwise it was searched for, with these votes, and is compared with live objects. */
    bool is_verified;
    const struct pypy_votes *votes;
};

/* NULL: there is none, or its places are not clear, which is recorded. */
HIDDEN const struct pypy_library *pypy_library_here(void);

/* Reads the names of types; the walker's state. Before any code of PyPy runs. */
HIDDEN bool pypy_names_make(const struct pypy_library *library);

/* To be called once PyPy has made the state of its first thread. */
HIDDEN void pypy_names_begin(void);

/* Compares code objects, and the frames of the calling thread, with what the build should have, until that is decided: before it
 * is, there are no functions. Under the interpreter's lock, outside of a collection. */
HIDDEN void pypy_names_verify(const allocsample_hooks *hooks, allocsample_heap *heap);

/* Whether an object's header can have this number. */
HIDDEN bool pypy_is_type(uint32_t id);

/* Of the functions that the calling thread runs, how many have code objects that can be collected, and how many of these have all
 * of these bits in their headers. Under the interpreter's lock. */
struct pypy_marked {
    size_t marked, all;
};
HIDDEN struct pypy_marked pypy_running_with(uint64_t bits);

/* The number of an object's type, by the header's number; defined when it is new. Under the interpreter's lock. */
HIDDEN allocsample_type pypy_type(const allocsample_hooks *hooks, allocsample_heap *heap, uint32_t id);

/* The function that memory is charged to which the collector takes: not the one that happened to fill the nursery. */
#define PYPY_COLLECTOR (UINT32_C(1) << 20)
/* Whether the calling thread collects, or makes the nursery. */
extern HIDDEN _Thread_local bool pypy_is_collecting __attribute__((tls_model("initial-exec")));

/* Whether the calling thread holds the interpreter's lock. */
HIDDEN bool pypy_has_lock(void);

/* Walks the Python functions of the calling thread. */
HIDDEN size_t pypy_walk(void *user, allocsample_frame *frames, size_t capacity);

/* Names functions that were met without the interpreter's lock. Under it, outside of a collection. */
HIDDEN void pypy_name_functions(const allocsample_hooks *hooks, allocsample_heap *heap);

#endif
