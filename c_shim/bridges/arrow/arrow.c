/* The mimalloc of Apache Arrow, which its default memory pool has: three functions that libarrow exports and calls by slots of its
 * own (seen in pyarrow 26). The slots are made to lead here, and back at a detach: no code is changed. A mimalloc with its own
 * functions redirected (bridges/entries) is left alone, as in pyarrow 25 under `run`. */
#define _GNU_SOURCE
#include "kit/allocator.h"
#include "kit/objects.h"

#include <string.h>

/* Copies of libarrow in the life of a process: each needs entries of its own, since a block goes back to where it came from. */
#define POOLS 2

static const char malloc_name[] = "arrow_mi_malloc_aligned", realloc_name[] = "arrow_mi_realloc_aligned",
                  free_name[] = "arrow_mi_free";

static const char mimalloc_name[] = "mimalloc";

static struct pool {
    struct allocator allocator;
    uintptr_t start; /* of libarrow; 0: it is gone */
    const void *headers;
    void *(*malloc_aligned)(size_t size, size_t alignment);
    void *(*realloc_aligned)(void *block, size_t size, size_t alignment);
    void (*free)(void *block);
} pools[POOLS];
static size_t pool_count;

static void *malloc_in(struct pool *pool, size_t size, size_t alignment)
{
    void *block = pool->malloc_aligned(size, alignment);
    if (block != NULL)
        allocator_allocated(&pool->allocator, block, size);
    return block;
}

/* The old block ends first: as soon as it is free, another thread may have its address. */
static void *realloc_in(struct pool *pool, void *block, size_t size, size_t alignment)
{
    if (block != NULL)
        allocator_freed(&pool->allocator, block);
    void *moved = pool->realloc_aligned(block, size, alignment);
    if (moved != NULL)
        allocator_allocated(&pool->allocator, moved, size);
    return moved;
}

static void free_in(struct pool *pool, void *block)
{
    if (block != NULL)
        allocator_freed(&pool->allocator, block);
    pool->free(block);
}

#define ENTRIES(NUMBER)                                                                                                \
    static void *malloc_##NUMBER(size_t size, size_t alignment)                                                        \
    {                                                                                                                  \
        return malloc_in(&pools[NUMBER], size, alignment);                                                             \
    }                                                                                                                  \
    static void *realloc_##NUMBER(void *block, size_t size, size_t alignment)                                          \
    {                                                                                                                  \
        return realloc_in(&pools[NUMBER], block, size, alignment);                                                     \
    }                                                                                                                  \
    static void free_##NUMBER(void *block)                                                                             \
    {                                                                                                                  \
        free_in(&pools[NUMBER], block);                                                                                \
    }
ENTRIES(0)
ENTRIES(1)

static const struct entries {
    void *(*malloc_aligned)(size_t size, size_t alignment);
    void *(*realloc_aligned)(void *block, size_t size, size_t alignment);
    void (*free)(void *block);
} entries[POOLS] = {{malloc_0, realloc_0, free_0}, {malloc_1, realloc_1, free_1}};

static void *address_of(const void *function_pointer)
{
    void *address;
    memcpy(&address, function_pointer, sizeof address);
    return address;
}

static void enter(struct pool *pool)
{
    const struct entries *own = &entries[pool - pools];
    shim_services.redirect_in_object(pool->start, free_name, NULL, address_of(&own->free));
    shim_services.redirect_in_object(pool->start, realloc_name, NULL, address_of(&own->realloc_aligned));
    shim_services.redirect_in_object(pool->start, malloc_name, NULL, address_of(&own->malloc_aligned));
}

static void leave(struct pool *pool)
{
    const struct entries *own = &entries[pool - pools];
    allocator_stop(&pool->allocator);
    shim_services.redirect_in_object(pool->start, malloc_name, address_of(&own->malloc_aligned),
                                     address_of(&pool->malloc_aligned));
    shim_services.redirect_in_object(pool->start, realloc_name, address_of(&own->realloc_aligned),
                                     address_of(&pool->realloc_aligned));
    shim_services.redirect_in_object(pool->start, free_name, address_of(&own->free), address_of(&pool->free));
}

static bool is_joined(uintptr_t start)
{
    for (size_t i = 0; i < pool_count; i++)
        if (pools[i].start == start)
            return true;
    return false;
}

static void visit(void *argument, const struct object_file *file)
{
    const bool *is_sure = argument;
    const char *slash = strrchr(file->path, '/');
    const char *name = slash == NULL ? file->path : slash + 1;
    if (strncmp(name, "libarrow.so", strlen("libarrow.so")) != 0 || pool_count == POOLS || is_joined(file->start) ||
        allocator_is_taken(mimalloc_name, file->start, file->end) ||
        (!*is_sure && !objects_is_loaded(file->start)))
        return;
    void *functions[] = {shim_services.symbol_of_object(file->start, malloc_name),
                         shim_services.symbol_of_object(file->start, realloc_name),
                         shim_services.symbol_of_object(file->start, free_name)};
    if (functions[0] == NULL || functions[1] == NULL || functions[2] == NULL)
        return;
    struct pool *pool = &pools[pool_count];
    *pool = (struct pool){.start = file->start, .headers = objects_headers(file->start)};
    pool->allocator.what = mimalloc_name;
    pool->allocator.key = (uintptr_t)functions[2];
    memcpy(&pool->malloc_aligned, &functions[0], sizeof functions[0]);
    memcpy(&pool->realloc_aligned, &functions[1], sizeof functions[1]);
    memcpy(&pool->free, &functions[2], sizeof functions[2]);
    if (!allocator_register(&pool->allocator, allocsample_get_hooks(ALLOCSAMPLE_VERSION), name))
        return;
    pool_count++;
    allocator_start(&pool->allocator);
    enter(pool);
}

static bool look(uintptr_t object)
{
    bool is_sure = true;
    objects_each(object, visit, &is_sure);
    return true;
}

static void join(void)
{
    look(0);
}

static void attach(void)
{
    for (size_t i = 0; i < pool_count; i++) {
        if (pools[i].start == 0)
            continue;
        allocator_resume(&pools[i].allocator);
        enter(&pools[i]);
    }
    bool is_sure = false;
    objects_each(0, visit, &is_sure);
}

static void detach(void)
{
    for (size_t i = 0; i < pool_count; i++)
        if (pools[i].start != 0)
            leave(&pools[i]);
}

static void after_dlclose(void)
{
    for (size_t i = 0; i < pool_count; i++) {
        struct pool *pool = &pools[i];
        struct shim_object object;
        if (pool->start == 0 || (shim_services.find_object((const void *)pool->start, &object) &&
                                 object.headers == pool->headers))
            continue;
        pool->start = 0;
        allocator_unregister(&pool->allocator);
    }
}

const struct bridge bridge_arrow = {
    .name = "arrow",
    .group = BRIDGE_EMBEDDED,
    .join = join,
    .attach = attach,
    .detach = detach,
    .look = look,
    .after_dlclose = after_dlclose,
};
