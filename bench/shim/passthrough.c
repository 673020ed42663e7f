/* The least that an interposer can do: each function jumps to the next allocator's through one cached pointer.
 *
 * What a profiler costs beyond this is its own; what this costs is the price of standing in front of malloc at all.
 * The pointers start at functions that look all of them up, so that the fast path has no test. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
#define COLD __attribute__((cold, noinline))

static void look_up(void);

#define FORWARD(TYPE, NAME, PARAMETERS, ARGUMENTS)                                                                     \
    COLD static TYPE first_##NAME PARAMETERS;                                                                          \
    static TYPE(*next_##NAME) PARAMETERS = first_##NAME;                                                               \
    COLD static TYPE first_##NAME PARAMETERS                                                                           \
    {                                                                                                                  \
        look_up();                                                                                                     \
        return next_##NAME ARGUMENTS;                                                                                  \
    }                                                                                                                  \
    EXPORT TYPE NAME PARAMETERS                                                                                        \
    {                                                                                                                  \
        return next_##NAME ARGUMENTS;                                                                                  \
    }

FORWARD(void *, malloc, (size_t size), (size))
FORWARD(void *, calloc, (size_t count, size_t size), (count, size))
FORWARD(void *, realloc, (void *block, size_t size), (block, size))
FORWARD(int, posix_memalign, (void **block, size_t alignment, size_t size), (block, alignment, size))
FORWARD(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))
FORWARD(void *, memalign, (size_t alignment, size_t size), (alignment, size))

COLD static void first_free(void *block);
static void (*next_free)(void *block) = first_free;
COLD static void first_free(void *block)
{
    look_up();
    next_free(block);
}
EXPORT void free(void *block)
{
    next_free(block);
}

/* glibc's dlsym allocates nothing when it succeeds, so no call comes back here meanwhile. */
__attribute__((constructor)) static void look_up(void)
{
    next_malloc = dlsym(RTLD_NEXT, "malloc");
    next_calloc = dlsym(RTLD_NEXT, "calloc");
    next_realloc = dlsym(RTLD_NEXT, "realloc");
    next_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    next_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    next_memalign = dlsym(RTLD_NEXT, "memalign");
    next_free = dlsym(RTLD_NEXT, "free");
}
