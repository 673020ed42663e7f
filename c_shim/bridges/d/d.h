/* What the files of the bridge to D share: d.c stands before the collector's functions, druntime.c knows where those are. */
#ifndef ALLOCSAMPLE_BRIDGES_D_H
#define ALLOCSAMPLE_BRIDGES_D_H

#include "bridge.h"

/* What `gc_qalloc` and `gc_query` return: `GC.BlkInfo`. */
struct d_block {
    void *base;
    size_t size;
    uint32_t attributes;
};

/* What `gc_profileStats` returns: `GC.ProfileStats`. */
struct d_collections {
    size_t count; /* that have ended */
    int64_t times[4];
};

/* Of druntime's `IsMarked`. */
enum { D_NOT_MARKED = 0, D_MARKED = 1, D_NOT_OF_THE_COLLECTOR = 2 };

/* A delegate of D: what it is called with first, and the function. */
struct d_is_marked {
    void *context;
    int (*function)(void *context, void *address);
};

/* The library that has the collector. */
struct d_druntime {
    uintptr_t start, code, code_end;
    size_t (*size_of)(const void *block);
    struct d_block (*query)(const void *address);
    bool (*is_in_finalizer)(void);
    struct d_collections (*collections)(void);
    /* Functions that it calls itself, at a collection and at its end. */
    void (*terminate)(void);
    void (*suspend_all)(void);
    void (*marks_of_all)(struct d_is_marked);                 /* before 2.111; or NULL */
    void (*marks_of_thread)(uintptr_t, uintptr_t, uintptr_t); /* since 2.111; or NULL */
    const char *marks_name;
};

/* Those that are to be called in their place. */
struct d_watched {
    void (*terminate)(void);
    void (*suspend_all)(void);
    void (*marks_of_all)(struct d_is_marked);
    void (*marks_of_thread)(uintptr_t, uintptr_t, uintptr_t);
};

/* A function that code of D calls, and the entry that stands before it. */
struct d_call {
    const char *name;
    void *entry;
    void *next; /* address of the pointer to the function */
    bool is_optional;
};

/* Finds it in the program's global scope. Returns what it lacks, or NULL. */
HIDDEN const char *d_druntime_find(struct d_druntime *druntime);

/* Has druntime's own calls come to `watched`. False, and they stay as they were: they pass through no slots. */
HIDDEN bool d_druntime_watch(const struct d_druntime *druntime, const struct d_watched *watched);
HIDDEN void d_druntime_unwatch(const struct d_druntime *druntime, const struct d_watched *watched);

/* Has calls of the object that is mapped from `object` on, or of all objects if that is 0, come to the entries, or go past them again. */
HIDDEN void d_druntime_enter(const struct d_call *calls, size_t count, uintptr_t object);
HIDDEN void d_druntime_leave(const struct d_call *calls, size_t count);

#endif
