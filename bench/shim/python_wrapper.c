/* The least that looking at each allocation of CPython's costs: its allocators of objects and memory wrapped by functions that
 * only hand on, and its `free` left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

enum { DOMAIN_MEM = 1, DOMAIN_OBJ = 2 };

/* PyMemAllocatorEx. */
struct allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

static struct allocator next;

static void *wrapped_malloc(void *context, size_t size)
{
    return next.malloc(context, size);
}

static void *wrapped_calloc(void *context, size_t count, size_t size)
{
    return next.calloc(context, count, size);
}

static void *wrapped_realloc(void *context, void *block, size_t size)
{
    return next.realloc(context, block, size);
}

__attribute__((constructor)) static void wrap(void)
{
    void (*get)(int, struct allocator *) = dlsym(RTLD_DEFAULT, "PyMem_GetAllocator");
    void (*set)(int, struct allocator *) = dlsym(RTLD_DEFAULT, "PyMem_SetAllocator");
    if (get == NULL || set == NULL)
        return;
    get(DOMAIN_OBJ, &next);
    struct allocator wrapped = {next.context, wrapped_malloc, wrapped_calloc, wrapped_realloc, next.free};
    set(DOMAIN_MEM, &wrapped);
    set(DOMAIN_OBJ, &wrapped);
}
