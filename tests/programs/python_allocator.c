/* Puts an allocator of its own under a running CPython: all blocks, of any size, come from one mapping, and none is given back.
 * Blocks of before stay with the allocator of before. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

struct allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

enum { MEMORY = 1, OBJECTS = 2, HEADER = 16 };
#define BYTES ((size_t)4 << 30)

static struct allocator before;
static char *start, *next;

static int is_own(const void *block)
{
    return (uintptr_t)block - (uintptr_t)start < BYTES;
}

static void *own_malloc(void *context, size_t size)
{
    (void)context;
    char *block = next + HEADER;
    next = block + (size + HEADER) / HEADER * HEADER;
    *(size_t *)(block - HEADER) = size;
    return block;
}

static void *own_calloc(void *context, size_t count, size_t size)
{
    return own_malloc(context, count * size); /* fresh pages are zero */
}

static void *own_realloc(void *context, void *old, size_t size)
{
    if (old != NULL && !is_own(old))
        return before.realloc(before.context, old, size);
    void *block = own_malloc(context, size);
    if (old != NULL) {
        size_t old_size = *(size_t *)((char *)old - HEADER);
        memcpy(block, old, old_size < size ? old_size : size);
    }
    return block;
}

static void own_free(void *context, void *block)
{
    (void)context;
    if (block != NULL && !is_own(block))
        before.free(before.context, block);
}

void install(void)
{
    void (*get)(int, struct allocator *) = (void (*)(int, struct allocator *))dlsym(RTLD_DEFAULT, "PyMem_GetAllocator");
    void (*set)(int, struct allocator *) = (void (*)(int, struct allocator *))dlsym(RTLD_DEFAULT, "PyMem_SetAllocator");
    struct allocator own = {NULL, own_malloc, own_calloc, own_realloc, own_free};
    start = next = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    get(OBJECTS, &before);
    set(MEMORY, &own);
    set(OBJECTS, &own);
}
