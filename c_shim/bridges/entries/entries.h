/* Declarations shared by the parts of the bridge to allocators that have no hooks: see entries.c. */
#ifndef ALLOCSAMPLE_BRIDGES_ENTRIES_H
#define ALLOCSAMPLE_BRIDGES_ENTRIES_H

#include "bridge.h"
#include "kit/allocator.h"
#include "kit/symbol_file.h"

/* Functions of one allocator. */
#define ENTRIES 64
/* Jumps from one of them to another. */
#define SITES 64
/* All of these are the first five arguments or fewer. */
#define ARGUMENTS 6
/* Of the file's name, which is cut if it is longer. */
#define FILE_NAME 96

enum entry_kind {
    ENTRY_ALLOCATES, /* returns a block */
    ENTRY_STORES,    /* stores a block by its first argument, and returns 0 */
    ENTRY_RESIZES,   /* returns a block in place of another */
    ENTRY_IN_PLACE,  /* returns the size of the block, which it may have changed */
    ENTRY_FREES,
};

/* A function of an allocator. Each letter of `arguments` is an argument: a block `b`, its size `s`, a small one `S` or one that may be
 * rounded up to pages `P`, or a count `n` and then a size, an alignment `a`, an offset `o` that can be 0, flags `f`, a place for a
 * block `p`, anything `-`. */
struct entry_row {
    const char *name;
    enum entry_kind kind;
    const char *arguments;
};

/* Asks `control` for an allocator's own counts, as asking.h says. False: it has none. */
typedef bool own_counts(uintptr_t control, uint64_t bytes[OWN_FIGURES]);

/* Whether a function with a certain name is the allocator's. */
enum ownership {
    OWN_NOT,
    OWN_BY_NAME,  /* no other code has such names */
    OWN_PROBABLY,
};

struct entry_allocator {
    const char *name;
    /* A function that no program with this allocator lacks. */
    const char *key;
    /* The function that returns its own counts, and how it is asked for them; NULL: it has none. */
    const char *control;
    own_counts *own_counts;
    /* A build puts a prefix of its own before all names but those of operators, which is what comes before the key. */
    bool is_renamed;
    const struct entry_row *rows;
    size_t count;
    /* The names are without that prefix. */
    enum ownership (*owns)(const char *name);
    /* Whether a function that is not among the rows hands out or takes back blocks: if one is called from outside, not all blocks
     * are seen. */
    bool (*hands_out)(const char *name);
};
extern HIDDEN const struct entry_allocator entry_allocators[];
extern HIDDEN const size_t entry_allocator_count;
/* Whether it is one of C++'s operators. */
HIDDEN bool entry_is_operator(const struct entry_row *row);

/* One that was found in a loaded file. */
struct entry_found {
    const struct entry_row *row;
    uintptr_t start, end; /* in memory */
    bool is_global;       /* others can name it */
    bool is_confirmed;    /* an operator that is the allocator's own */
    size_t skipped;       /* bytes of `endbr64`, which stays */
    size_t moved;         /* bytes behind them, whole instructions, that a jump replaces */
    uint8_t begins[32];   /* `skipped` and `moved` */
};

/* A jump or a call, in one of the functions, to the beginning of another one. */
struct entry_site {
    uintptr_t at; /* of its distance */
    size_t to;    /* the number of the other one */
};

struct entries_found {
    const struct entry_allocator *allocator;
    uintptr_t object;
    struct entry_found entries[ENTRIES];
    size_t count;
    struct entry_site sites[SITES];
    size_t site_count;
    uintptr_t start, end;   /* most of the allocator's code */
    uintptr_t key;        /* the function of this name */
    uintptr_t control;    /* 0: it is not there */
    bool is_control_global;
    const char *refused;  /* NULL: its entries can be redirected */
    char what[64];        /* which function is refused */
    char file[FILE_NAME];
};

/* Looks for these allocators in the file that is mapped from `object` on, or in all files with code if that is 0, and calls `join`
 * with each. */
HIDDEN void entries_search(uintptr_t object, void (*join)(const struct entries_found *found));

/* ---- stubs ---- */

struct entry {
    struct redirected *of;
    const struct entry_row *row;
    uintptr_t start;
    uintptr_t jump, stub; /* the jump in the function, and where it leads to */
    uintptr_t original;   /* does what the function did before */
    uint8_t block, size, count, offset; /* the numbers of its arguments; ARGUMENTS: it has none */
};

/* An allocator whose functions are led to stubs. */
struct redirected {
    struct allocator allocator;
    struct entry entries[ENTRIES];
    size_t count;
    uintptr_t object;          /* 0: it is gone */
    _Atomic(bool) is_waiting;  /* for its trial */
    char file[FILE_NAME];
    uintptr_t control;         /* 0: it does not tell its counts */
    own_counts *own_counts;
};

/* The allocator's functions are led to stubs near them, and back, while no other thread can be in them. */
HIDDEN bool stubs_put(const struct entries_found *found, struct entry *entries, size_t number);
HIDDEN void stubs_take_back(const struct entries_found *found);
/* Whether the functions still lead there: their library may be gone. */
HIDDEN bool stubs_are_there(const struct redirected *of);

/* Called by a stub: a sample may be due, or a sampled block ends. Returns what the function returns. */
HIDDEN uintptr_t entry_due(const struct entry *entry, const uintptr_t arguments[ARGUMENTS]);
HIDDEN uintptr_t entry_call(uintptr_t function, const uintptr_t arguments[ARGUMENTS]);

/* ---- trials ---- */

/* Whether it has the functions that a trial needs. */
HIDDEN bool trial_can_be_run(const struct redirected *of);
/* Whether all functions count one block at a time. If not, which one does what else. */
HIDDEN bool trial_passes(struct redirected *of, const char **what, const char **why);
/* On a thread that runs a trial, calls are reported to it. */
extern HIDDEN _Thread_local bool trial_is_on __attribute__((tls_model("initial-exec")));
HIDDEN void trial_freed(uintptr_t block);
HIDDEN void trial_allocated(uintptr_t block, size_t size);

#endif
