/* Where a build of PyPy has what the bridge needs, found in the bytes of its library. */
#ifndef ALLOCSAMPLE_BRIDGES_PYPY_FIND_H
#define ALLOCSAMPLE_BRIDGES_PYPY_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kit/instructions.h"

/* Where a build has what we need: offsets in its library, and in its objects. RPython leaves no names. */
struct pypy_build {
    uint8_t id[20];                                    /* the build id */
    uint32_t reserve, collect, step;                   /* collect_and_reserve, _minor_collection, major_collection_step */
    uint32_t entry;                                    /* entry_point */
    uint32_t log_start, log_stop, log_sections;        /* pypy_debug_start, pypy_debug_stop, pypy_have_debug_prints */
    uint32_t gc;                                       /* the collector */
    uint32_t state, threshold, free, top;              /* in the collector */
    uint32_t large_bytes;                              /* in the collector: of large objects; 0: not known */
    uint32_t small_bytes;                              /* of objects in arenas; 0: not known */
    uint32_t type_names;                               /* behind its length: compressed text */
    uint32_t type_ids;                                 /* behind their count: 32-bit numbers in the text's order */
    uint32_t frames_of_code;                           /* vmprof_write_header_for_jit_addr; 0: not known */
    uint32_t lock;                                     /* the interpreter's: the `ident` of the thread that holds it */
    uint32_t ident, stack;                             /* in a thread's state; the stack is vmprof's, 0: not known */
    uint32_t thread_bytes;                             /* of a thread's state */
    uint32_t thread_key;                               /* of a thread's state, for pthread_getspecific; 0: it is thread-local memory */
    uint32_t codes, handles;                           /* the list of all code objects, and in it the weak references; 0: not known */
    uint32_t name, number, file, line;                 /* in a code object */
    uint32_t code_type, string_type;                   /* in the headers of code objects and strings */
};

/* Each with the places that agree, and those that were asked. */
enum pypy_ballot {
    PYPY_NURSERY,     /* places in the code that put an object into the nursery: where `free` and `top` are */
    PYPY_RESERVE,     /* the same places: what they call when the object does not fit */
    PYPY_COLLECTIONS, /* functions that log a collection */
    PYPY_LOG,         /* places that ask whether PyPy logs */
    PYPY_STATE,       /* fields that the step of a major collection sets to each of the four states */
    PYPY_THRESHOLD,   /* places that count down to a collection, and then put `free` to `top` */
    PYPY_USED,        /* places that add up the bytes in use */
    PYPY_START,       /* calls in pypy_main_startup that can be the program's start */
    PYPY_TYPES,       /* tables of types */
    PYPY_CODES,       /* lists of code objects */
    PYPY_COMPILED,    /* functions that look up compiled code */
    PYPY_BALLOTS,
};
struct pypy_votes {
    uint32_t winner, all;
};

/* Inflates zlib's format, like `uncompress`. */
typedef int pypy_uncompress(uint8_t *to, unsigned long *to_bytes, const uint8_t *from, unsigned long from_bytes);

struct pypy_search {
    pypy_uncompress *uncompress; /* NULL: names are not found */
    uint8_t *room;               /* for the names of types */
    size_t room_bytes;
};

/* Searches the file of a library, and stores the places and the votes. Returns NULL if they suffice to sample the heap, or else the
 * reason why not, as text. Never reads outside of the file, whatever its contents. */
__attribute__((visibility("hidden"))) const char *pypy_find(const uint8_t *file, size_t length,
                                                            const struct pypy_search *search, struct pypy_build *found,
                                                            struct pypy_votes votes[PYPY_BALLOTS]);

/* What a ballot is about. */
__attribute__((visibility("hidden"))) const char *pypy_ballot_name(enum pypy_ballot ballot);

enum { PYPY_BEGINNING_MOST = 24 };

/* The length of the mark of a target of indirect jumps, which stays: all calls of these functions are direct. */
static inline size_t pypy_mark_bytes(const uint8_t *code)
{
    static const uint8_t mark[] = {0xf3, 0x0f, 0x1e, 0xfa};
    return memcmp(code, mark, sizeof mark) == 0 ? sizeof mark : 0;
}

/* What a jump of 5 bytes replaces at `code`: see instructions_of_start. */
static inline size_t pypy_beginning(const uint8_t *code, size_t *distance_at)
{
    return instructions_of_start(code, PYPY_BEGINNING_MOST, 5, distance_at);
}

#endif
