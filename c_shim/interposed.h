/* The functions that we stand before, and what they call in turn. */
#ifndef ALLOCSAMPLE_INTERPOSED_H
#define ALLOCSAMPLE_INTERPOSED_H

#include <malloc.h>
#include <stdlib.h>

#include "shim.h"

/* C23's, which older headers lack. */
void free_sized(void *block, size_t size);
void free_aligned_sized(void *block, size_t alignment, size_t size);
/* jemalloc's. */
void *mallocx(size_t size, int flags);
void *rallocx(void *block, size_t size, int flags);
void dallocx(void *block, int flags);
void sdallocx(void *block, size_t size, int flags);

/* The allocator that comes after us in symbol order. Each pointer starts at a function that finds the real one, so that
 * no caller tests for NULL. Missing functions are composed from present ones of the same allocator. */
struct shim_next {
#define MALLOC(NAME) __typeof__(&NAME) NAME;
#define COMPOSED(NAME, COMPOSITION) MALLOC(NAME)
#include "interposed.def"
};
extern HIDDEN struct shim_next shim_next;
HIDDEN void shim_find_next(void);

enum shim_group {
    SHIM_MALLOC,
    SHIM_COMPOSED,
    SHIM_NEW,
    SHIM_DELETE,
    SHIM_EXTENSION,
    SHIM_MAPPING,
    SHIM_PROCESS,
    SHIM_START,
    SHIM_ENTRY,
    SHIM_LATE,
};

/* A row of the table. */
struct shim_function {
    const char *name;
    enum shim_group group;
    /* Our function, which replaces `next` in slots. NULL: it is exported, or not redirected. */
    void *own;
    /* The definition that the program's calls reach without us. NULL: not looked up yet, or there is none. In a process that was
     * attached to it is NULL also if the function is not redirected. */
    void *next;
};
enum {
#define INTERPOSED(GROUP, NAME) SHIM_ROW_##NAME,
#include "interposed.def"
    SHIM_ROWS
};
extern HIDDEN struct shim_function shim_functions[SHIM_ROWS];

/* Looks up all that `NEXT` can name, before the program runs: they may be called first in a signal handler, or interrupted by
 * one that never returns, and the look-up takes the loader's lock. */
HIDDEN void shim_find_functions(void);
/* What we have looked up and not found is no error of the program's, which may ask dlerror() for its own. Of the calling
 * thread, before the program has asked for anything. */
HIDDEN void shim_forget_failed_lookups(void);

/* The address; looked up now if it was not there before the program ran, or in a process that was attached to, where nothing
 * is locked for it. A race stores the same value twice. */
static inline void *shim_next_function(struct shim_function *function)
{
    void *next = __atomic_load_n(&function->next, __ATOMIC_ACQUIRE);
    if (UNLIKELY(next == NULL)) {
        next = shim_find_symbol(function->name);
        __atomic_store_n(&function->next, next, __ATOMIC_RELEASE);
    }
    return next;
}
/* The function `NAME` of the next object that has it, or NULL. */
#define NEXT(NAME) ((__typeof__(&NAME))shim_next_function(&shim_functions[SHIM_ROW_##NAME]))

#endif
