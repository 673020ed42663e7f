/* Samples of an allocator that keeps all of its blocks: CPython's mimalloc, which builds without the interpreter's lock have for
 * objects of every size, or one that the program has installed. Their collector finds objects by the allocator's pages, so a
 * sample has to stay where it was put. Its end is told by `free`, which is wrapped too: it reads a byte of the filter of
 * sampled blocks, as malloc's does.
 *
 * Threads allocate and free side by side. So an end is told before the block is freed, when another thread can get it. */
#include "kit/countdown_threads.h"
#include "python.h"

#include <string.h>

/* Zero until the thread's first object. */
static _Thread_local struct countdown this_thread;

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct countdown_threads threads;
/* The original allocators. */
static struct python_allocator next_memory, next_object;

/* The charge of `size` bytes borrowed: whether the block is a sample. If not, it is charged. */
static bool is_due(size_t size)
{
    countdown_give_back(&this_thread, size);
    if (this_thread.limit == 0)
        countdown_join(&threads, &this_thread);
    return !countdown_take(&this_thread, size);
}

/* The block is there, or NULL for one that is not: then nothing was charged. `content`: bytes at its start that mean something. */
COLD static void *tell(void *block, size_t size, size_t content, bool is_object)
{
    if (block == NULL)
        return NULL;
    /* No object that was there before is taken for this one, by the collector or by us. */
    if (content < size && content < PYTHON_HEADERS)
        memset((char *)block + content, 0, (size < PYTHON_HEADERS ? size : PYTHON_HEADERS) - content);
    python_gc_watch();
    python_types_look();
    allocsample_id sample = countdown_tell(&this_thread, hooks, heap, (uintptr_t)block, size, 0);
    python_types_await(&(struct python_block){sample, (uintptr_t)block, size, .is_object = is_object});
    return block;
}

static void tell_end(void *block)
{
    python_types_end(block);
    hooks->freed(heap, (uintptr_t)block);
}

static ALWAYS_INLINE void *take(const struct python_allocator *next, void *context, size_t size, bool is_object)
{
    if (!countdown_charge(&this_thread, size))
        return next->malloc(context, size);
    bool is_sample = is_due(size);
    void *block = next->malloc(context, size);
    return is_sample ? tell(block, size, 0, is_object) : block;
}

static ALWAYS_INLINE void *take_zeroed(const struct python_allocator *next, void *context, size_t count, size_t size,
                                       bool is_object)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || !countdown_charge(&this_thread, bytes))
        return next->calloc(context, count, size);
    bool is_sample = is_due(bytes);
    void *block = next->calloc(context, count, size);
    return is_sample ? tell(block, bytes, bytes, is_object) : block;
}

/* A free and an allocation of the new size, as realloc is everywhere. Where there is no memory, the old block stays, and is told
 * to have ended. */
static ALWAYS_INLINE void *take_again(const struct python_allocator *next, void *context, void *old, size_t size, bool is_object)
{
    if (shim_is_marked(shim_services.block_filter, old))
        tell_end(old);
    if (!countdown_charge(&this_thread, size))
        return next->realloc(context, old, size);
    bool is_sample = is_due(size);
    void *block = next->realloc(context, old, size);
    /* How much of it is content is not known: all of it may be. */
    return is_sample ? tell(block, size, old == NULL ? 0 : size, is_object && old != NULL) : block;
}

static ALWAYS_INLINE void give_back(const struct python_allocator *next, void *context, void *block)
{
    if (shim_is_marked(shim_services.block_filter, block))
        tell_end(block);
    next->free(context, block);
}

static void *object_malloc(void *context, size_t size)
{
    return take(&next_object, context, size, true);
}

static void *object_calloc(void *context, size_t count, size_t size)
{
    return take_zeroed(&next_object, context, count, size, true);
}

static void *object_realloc(void *context, void *old, size_t size)
{
    return take_again(&next_object, context, old, size, true);
}

static void object_free(void *context, void *block)
{
    give_back(&next_object, context, block);
}

static void *memory_malloc(void *context, size_t size)
{
    return take(&next_memory, context, size, false);
}

static void *memory_calloc(void *context, size_t count, size_t size)
{
    return take_zeroed(&next_memory, context, count, size, false);
}

static void *memory_realloc(void *context, void *old, size_t size)
{
    return take_again(&next_memory, context, old, size, false);
}

static void memory_free(void *context, void *block)
{
    give_back(&next_memory, context, block);
}

bool python_in_place_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    hooks = the_hooks;
    heap = the_heap;
    return countdown_threads_prepare(&threads, hooks, heap);
}

/* Our contexts are theirs, so that a thread that reads a new function with an old context, or the other way round, calls what it
 * should. */
void python_in_place_wrap(const struct python_symbols *symbols)
{
    struct python_allocator memory, object;
    symbols->get_allocator(PYTHON_MEMORY, &memory);
    symbols->get_allocator(PYTHON_OBJECTS, &object);
    if (memory.malloc == memory_malloc || object.malloc == object_malloc)
        return;
    next_memory = memory;
    next_object = object;
    memory = (struct python_allocator){memory.context, memory_malloc, memory_calloc, memory_realloc, memory_free};
    object = (struct python_allocator){object.context, object_malloc, object_calloc, object_realloc, object_free};
    symbols->set_allocator(PYTHON_MEMORY, &memory);
    symbols->set_allocator(PYTHON_OBJECTS, &object);
}

/* A hook that was installed after ours calls us, so that we stay, and only pass on. */
void python_in_place_unwrap(const struct python_symbols *symbols)
{
    struct python_allocator now;
    symbols->get_allocator(PYTHON_MEMORY, &now);
    if (now.malloc == memory_malloc)
        symbols->set_allocator(PYTHON_MEMORY, &next_memory);
    symbols->get_allocator(PYTHON_OBJECTS, &now);
    if (now.malloc == object_malloc)
        symbols->set_allocator(PYTHON_OBJECTS, &next_object);
}
