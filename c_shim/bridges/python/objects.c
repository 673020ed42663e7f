/* The allocator of CPython's small objects (up to 512 bytes), which come from its own arenas and never pass malloc. Larger ones
 * are malloc's, and are counted there. (Other allocators than that of arenas are for in_place.c.)
 *
 * The allocators of the object and memory domains are wrapped, but not their `free`, which Python's builds have compiled into
 * its callers for the case that nobody wraps it. An object that is no sample costs a subtraction (countdown.h). One that is
 * a sample is put where malloc's blocks are: Python's allocator hands each block that is not in its arenas on to `free` and
 * `realloc`, and those are ours. It gets there by Python's own way for objects that are too large for the arenas, so that
 * `sys.getallocatedblocks` is right.
 *
 * They are wrapped before `main`, while nobody uses them, or at an attach, while all threads may. Our context is the one that
 * Python's allocators have, NULL: a thread that reads the new function with the old context, or the old one with the new,
 * calls what it should. */
#include "kit/countdown_threads.h"
#include "python.h"

#include <string.h>

/* Larger requests go on to malloc (CPython's SMALL_REQUEST_THRESHOLD). */
#define SMALL 512
#define TOO_LARGE (SMALL + 1)
/* Zero until the thread's first object. */
static _Thread_local struct countdown this_thread;
/* While a block is allocated that is too large for the arenas, and so is one of malloc's: where it comes from, and whether it has
 * content already. */
static _Thread_local enum { NO_BLOCK, OBJECT, GROWN_OBJECT, MEMORY } large_block;
/* While a sampled object is allocated: its size, by which the raw domain replaces the one that it is asked for, and whether that
 * domain was asked for anything. */
static _Thread_local struct {
    bool is_asked, has_reached_raw;
    size_t size;
    uint64_t bytes_until_sample; /* the counter of malloc before */
} sampled_object;

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct countdown_threads threads;
/* The original allocators of the object and memory domains, and of the raw domain. */
static struct python_allocator next, next_raw;
static const struct python_symbols *python;

/* The charge of an object of `size` bytes borrowed: whether the object is a sample. If not, it is charged. */
static bool is_due(size_t size)
{
    countdown_give_back(&this_thread, size);
    if (this_thread.limit == 0)
        countdown_join(&threads, &this_thread);
    return !countdown_take(&this_thread, size);
}

/* The raw domain is about to be asked for another size than it is to give. */
static void ask_for(size_t size)
{
    sampled_object.is_asked = true;
    sampled_object.has_reached_raw = false;
    sampled_object.size = size;
    sampled_object.bytes_until_sample = shim_services.counters()->bytes_until_sample;
}

static size_t asked_size(void)
{
    sampled_object.is_asked = false;
    return sampled_object.size + (sampled_object.size == 0);
}

/* Whether this is the block that a sampled object is to be. */
static bool is_asked_for(size_t size)
{
    if (LIKELY(!sampled_object.is_asked))
        return false;
    sampled_object.has_reached_raw = true;
    return size == TOO_LARGE;
}

/* Calls the next allocator, not the interposed malloc: the object was charged already. */
static void *raw_malloc(void *context, size_t size)
{
    return is_asked_for(size) ? shim_services.malloc_uncounted(asked_size()) : next_raw.malloc(context, size);
}

static void *raw_calloc(void *context, size_t count, size_t size)
{
    return is_asked_for(size) && count == 1 ? shim_services.calloc_uncounted(1, asked_size())
                                            : next_raw.calloc(context, count, size);
}

/* The allocator has not asked the raw domain for a block that is too large for arenas. So it is another one, whose samples stay in
 * place, unless it hands requests on to malloc, which counts them. With the interpreter's lock. */
COLD static void find_other_allocator(void)
{
    uint64_t left = shim_services.counters()->bytes_until_sample;
    if (left > sampled_object.bytes_until_sample)
        return; /* malloc has sampled meanwhile: the next object shows it */
    python_objects_unwrap(python);
    if (left == sampled_object.bytes_until_sample)
        python_in_place_wrap(python);
}

/* The block that was asked for is there, or NULL for one that is not: then nothing was charged. `is_object`: it comes from the
 * domain of objects. It is zero where one would have its header, or has been what it is. */
static void *tell(void *block, size_t size, bool is_object)
{
    /* Somebody has wrapped the raw domain since, and asks it for more, or it is not asked: what `free` will get is not this
     * address. */
    bool has_end = !sampled_object.is_asked;
    sampled_object.is_asked = false;
    if (block == NULL)
        return NULL;
    if (UNLIKELY(!has_end && !sampled_object.has_reached_raw))
        find_other_allocator();
    python_gc_watch();
    python_types_look();
    allocsample_id sample = countdown_tell(&this_thread, hooks, heap, (uintptr_t)block, size, 0);
    if (!has_end)
        hooks->freed(heap, (uintptr_t)block);
    else
        python_types_await(&(struct python_block){sample, (uintptr_t)block, size, .is_object = is_object});
    return block;
}

/* ---- both domains: the same, but for what the blocks may hold ---- */

/* malloc has made a large block a sample of its own heap: this one, unless a signal handler has asked for one meanwhile, which may
 * have content if this one should have none. */
static void on_sampled(uint64_t sample, void *block, size_t size, bool is_realloc)
{
    if (large_block == NO_BLOCK || is_realloc != (large_block == GROWN_OBJECT))
        return;
    if (!is_realloc)
        memset(block, 0, size < PYTHON_HEADERS ? size : PYTHON_HEADERS);
    python_gc_watch();
    python_types_look();
    python_types_await(&(struct python_block){sample, (uintptr_t)block, size, .is_object = large_block != MEMORY,
                                              .is_of_malloc = true});
}

static void *malloc_large(void *context, size_t size, bool is_object)
{
    large_block = is_object ? OBJECT : MEMORY;
    void *block = next.malloc(context, size);
    large_block = NO_BLOCK;
    return block;
}

COLD static void *malloc_at_limit(void *context, size_t size, bool is_object)
{
    if (!is_due(size))
        return next.malloc(context, size);
    ask_for(size);
    void *block = next.malloc(context, TOO_LARGE);
    if (block != NULL)
        memset(block, 0, size < PYTHON_HEADERS ? size : PYTHON_HEADERS);
    return tell(block, size, is_object);
}

static ALWAYS_INLINE void *domain_malloc(void *context, size_t size, bool is_object)
{
    if (UNLIKELY(size > SMALL))
        return malloc_large(context, size, is_object);
    if (countdown_charge(&this_thread, size))
        return malloc_at_limit(context, size, is_object);
    return next.malloc(context, size);
}

static void *calloc_large(void *context, size_t count, size_t size, bool is_object)
{
    large_block = is_object ? OBJECT : MEMORY;
    void *block = next.calloc(context, count, size);
    large_block = NO_BLOCK;
    return block;
}

COLD static void *calloc_at_limit(void *context, size_t count, size_t size, bool is_object)
{
    if (!is_due(count * size))
        return next.calloc(context, count, size);
    ask_for(count * size);
    return tell(next.calloc(context, 1, TOO_LARGE), count * size, is_object);
}

static ALWAYS_INLINE void *domain_calloc(void *context, size_t count, size_t size, bool is_object)
{
    bool is_small = count == 0 || size <= SMALL / count;
    if (UNLIKELY(!is_small))
        return calloc_large(context, count, size, is_object);
    if (countdown_charge(&this_thread, count * size))
        return calloc_at_limit(context, count, size, is_object);
    return next.calloc(context, count, size);
}

COLD static void *realloc_at_limit(void *context, void *old, size_t size, bool is_object)
{
    if (!is_due(size))
        return next.realloc(context, old, size);
    void *block = next.realloc(context, old, size);
    if (block == NULL)
        return NULL;
    ask_for(size);
    void *sampled = next.malloc(context, TOO_LARGE);
    if (sampled != NULL) {
        memcpy(sampled, block, size);
        next.free(context, block);
    }
    /* Without memory the next object is the sample. */
    return tell(sampled, size, is_object && old != NULL) != NULL ? sampled : block;
}

/* From the memory domain only tables of dictionaries are reported, which do not grow. */
static void *realloc_large(void *context, void *old, size_t size, bool is_object)
{
    large_block = is_object && old != NULL ? GROWN_OBJECT : NO_BLOCK;
    void *block = next.realloc(context, old, size);
    large_block = NO_BLOCK;
    return block;
}

/* One of malloc's blocks that is sampled stays one of malloc's, which charges the new size. */
COLD static void *realloc_of_marked(void *context, void *old, size_t size, bool is_object)
{
    if (!shim_services.is_sampled(old) && size <= SMALL && countdown_charge(&this_thread, size))
        return realloc_at_limit(context, old, size, is_object);
    return size > SMALL ? realloc_large(context, old, size, is_object) : next.realloc(context, old, size);
}

/* A free and an allocation of the new size, as realloc is everywhere. */
static ALWAYS_INLINE void *domain_realloc(void *context, void *old, size_t size, bool is_object)
{
    if (shim_is_marked(shim_services.block_filter, old))
        return realloc_of_marked(context, old, size, is_object);
    if (UNLIKELY(size > SMALL))
        return realloc_large(context, old, size, is_object);
    if (countdown_charge(&this_thread, size))
        return realloc_at_limit(context, old, size, is_object);
    return next.realloc(context, old, size);
}

static void *object_malloc(void *context, size_t size)
{
    return domain_malloc(context, size, true);
}

static void *object_calloc(void *context, size_t count, size_t size)
{
    return domain_calloc(context, count, size, true);
}

static void *object_realloc(void *context, void *old, size_t size)
{
    return domain_realloc(context, old, size, true);
}

static void *memory_malloc(void *context, size_t size)
{
    return domain_malloc(context, size, false);
}

static void *memory_calloc(void *context, size_t count, size_t size)
{
    return domain_calloc(context, count, size, false);
}

static void *memory_realloc(void *context, void *old, size_t size)
{
    return domain_realloc(context, old, size, false);
}

/* ---- wrapping ---- */

static bool is_same(const struct python_allocator *a, const struct python_allocator *b)
{
    return a->context == b->context && a->malloc == b->malloc && a->calloc == b->calloc && a->realloc == b->realloc &&
           a->free == b->free;
}

bool python_objects_prepare(const struct python_symbols *symbols, const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    python = symbols;
    hooks = the_hooks;
    heap = the_heap;
    shim_services.set_on_sampled(on_sampled);
    return countdown_threads_prepare(&threads, hooks, heap) && python_in_place_prepare(hooks, heap);
}

/* An allocator with a context is none of the interpreter's own, but debug hooks, tracemalloc or the program's, and one that is
 * that of the raw domain is malloc's. The two domains share the allocator of arenas: it hands blocks that are not its own on to
 * the raw domain, which is found out at the first sample. (Its name could be asked for with `_PyMem_GetCurrentAllocatorName`, but
 * in 3.12 that takes a lock which is not there before `main`.) */
void python_objects_wrap(const struct python_symbols *symbols)
{
    struct python_allocator raw, memory, object;
    symbols->get_allocator(PYTHON_RAW, &raw);
    symbols->get_allocator(PYTHON_MEMORY, &memory);
    symbols->get_allocator(PYTHON_OBJECTS, &object);
    bool is_interpreters = object.context == NULL && memory.context == NULL && raw.context == NULL &&
                           object.malloc != raw.malloc && memory.malloc != raw.malloc;
    if (!is_interpreters || object.malloc == object_malloc || raw.malloc == raw_malloc)
        return;
    if (!is_same(&memory, &object)) {
        python_in_place_wrap(symbols);
        return;
    }
    next = object;
    next_raw = raw;
    raw.malloc = raw_malloc;
    raw.calloc = raw_calloc;
    object.malloc = object_malloc;
    object.calloc = object_calloc;
    object.realloc = object_realloc;
    memory.malloc = memory_malloc;
    memory.calloc = memory_calloc;
    memory.realloc = memory_realloc;
    symbols->set_allocator(PYTHON_RAW, &raw);
    symbols->set_allocator(PYTHON_MEMORY, &memory);
    symbols->set_allocator(PYTHON_OBJECTS, &object);
}

void python_objects_unwrap(const struct python_symbols *symbols)
{
    struct python_allocator now;
    for (int domain = PYTHON_MEMORY; domain <= PYTHON_OBJECTS; domain++) {
        symbols->get_allocator(domain, &now);
        /* A later hook calls us, so ours stays installed and only passes on. */
        if (now.malloc == object_malloc || now.malloc == memory_malloc)
            symbols->set_allocator(domain, &next);
    }
    symbols->get_allocator(PYTHON_RAW, &now);
    if (now.malloc == raw_malloc)
        symbols->set_allocator(PYTHON_RAW, &next_raw);
    python_in_place_unwrap(symbols);
}
