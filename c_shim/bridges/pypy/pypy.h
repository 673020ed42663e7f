/* PyPy as it is installed: what pypy.c and names.c share. */
#ifndef ALLOCSAMPLE_BRIDGES_PYPY_H
#define ALLOCSAMPLE_BRIDGES_PYPY_H

#include "allocsample.h"
#include "bridge.h"

/* Where a build has what we need: offsets in its library, and in its objects. RPython leaves no names. */
struct pypy_build {
    uint8_t id[20];                                    /* the build id */
    uint32_t reserve, collect, step, entry;            /* collect_and_reserve, _minor_collection, major_collection_step, entry_point */
    uint32_t log_start, log_stop, log_sections;        /* pypy_debug_start, pypy_debug_stop, pypy_have_debug_prints */
    uint32_t gc;                                       /* the collector */
    uint16_t state, threshold, free, top, large_bytes; /* in the collector */
    uint32_t small_bytes;                              /* of objects in arenas */
    uint32_t type_names, type_ids;                     /* each behind its length: compressed text, and 32-bit numbers in the text's order */
    uint32_t frames_of_code;                           /* vmprof_write_header_for_jit_addr */
    uint32_t lock;                                     /* the interpreter's: who holds it */
    uint32_t codes, handles;                           /* the list of all code objects, and in it the weak references */
    uint16_t name, number, file, line;                 /* in a code object */
};

/* A thread's state: the library's only thread-local variable. */
struct pypy_thread {
    int32_t ready; /* PYPY_READY */
    uint8_t others[0x34];
    uintptr_t ident; /* what the lock holds while this thread has it */
    uintptr_t other;
    const struct pypy_frame *stack; /* vmprof's: what runs, leaf first */
};
#define PYPY_READY 42
_Static_assert(offsetof(struct pypy_thread, ident) == 0x38 && offsetof(struct pypy_thread, stack) == 0x48, "its layout");

/* An RPython string. */
struct pypy_string {
    uintptr_t header, hash;
    intptr_t length;
    char bytes[];
};

/* Reads the names of types; the walker's state. Before any code of PyPy runs. `thread` is the calling thread's state: the
 * library was loaded with the program, so that it is as far from each thread's own storage. */
HIDDEN bool pypy_names_make(const struct pypy_build *build, uintptr_t base, const void *thread);

/* The number of an object's type, by the header's number; defined when it is new. Under the interpreter's lock. */
HIDDEN allocsample_type pypy_type(const allocsample_hooks *hooks, allocsample_heap *heap, uint32_t id);

/* The function that memory is charged to which the collector takes: not the one that happened to fill the nursery. */
#define PYPY_COLLECTOR (UINT32_C(1) << 20)
/* Whether the calling thread collects. */
extern HIDDEN _Thread_local bool pypy_is_collecting __attribute__((tls_model("initial-exec")));

/* Walks the Python functions of the calling thread. */
HIDDEN size_t pypy_walk(void *user, allocsample_frame *frames, size_t capacity);

/* Names functions that were met without the interpreter's lock. Under it, outside of a collection. */
HIDDEN void pypy_name_functions(const allocsample_hooks *hooks, allocsample_heap *heap);

#endif
