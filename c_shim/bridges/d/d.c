/* The heap of D's collector, in programs that use a shared druntime (libdruntime-ldc-shared.so, libgphobos.so).
 *
 * Code of D calls the collector by C names, through the table of its object, so that we stand before them as before malloc.
 * Nothing tells when a block dies, but at the end of a collection's marking, while all threads are stopped, druntime calls
 * `thread_processGCMarks` with a function that says which blocks are marked: those of our samples that are not are about to
 * be freed.
 *
 * druntime stops threads with signals, wherever they are. So no lock is held here, and a key is an inverted address: the
 * collector takes every word on a stack that looks like an address for a reference. */
#define _GNU_SOURCE
#include "bridge.h"
#include "kit/countdown_threads.h"
#include "kit/pass_on.h"
#include "kit/watches.h"

#include <string.h>

/* What `gc_qalloc` returns. */
struct block_info {
    void *base;
    size_t size;
    uint32_t attributes;
};

/* Of druntime's `IsMarked`. */
enum { NOT_MARKED = 0, MARKED = 1, NOT_OF_THE_COLLECTOR = 2 };

/* A delegate of D: what it is called with first, and the function. */
struct is_marked {
    void *context;
    int (*function)(void *context, void *address);
};

/* What druntime is asked. */
static struct {
    size_t (*size_of)(const void *block);
    bool (*is_in_finalizer)(void);
} druntime;

static const allocsample_hooks *hooks;
HIDDEN _Atomic(allocsample_heap *) d_heap; /* NULL: the bridge is off, and the entries pass all calls on */
static struct countdown_threads threads;
static struct watches watches;
static _Atomic(uint64_t) extended; /* samples of what a block grew by: they lie inside of it */
static _Atomic(bool) is_ending;
static uint64_t gc_begin_ns, gc_count; /* while threads are stopped, or by the thread that stops them */

/* Zero until the thread's first block. */
static _Thread_local struct countdown this_thread;

static uintptr_t hidden(const void *block)
{
    return ~(uintptr_t)block;
}

/* ---- deaths ---- */

static struct is_marked asked; /* while threads are stopped */

static void resolve(struct watch *watch, uint32_t generation)
{
    (void)generation;
    if (asked.function(asked.context, (void *)~watch->handle) != NOT_MARKED)
        return;
    hooks->freed(d_heap, watch->handle);
    watches_give_back(&watches, watch);
}

/* Of the one call of `watches_each` that ends one block, or all that lie in it: on this thread. */
static _Thread_local struct {
    uintptr_t start, end;
} ended;

static void end_if_inside(struct watch *watch, uint32_t generation)
{
    (void)generation;
    uintptr_t address = ~watch->handle;
    if (address < ended.start || address >= ended.end)
        return;
    hooks->freed(d_heap, watch->handle);
    watches_give_back(&watches, watch);
}

static void end_range(const void *block, size_t bytes)
{
    ended.start = (uintptr_t)block;
    ended.end = ended.start + bytes;
    watches_each(&watches, 0, end_if_inside);
}

/* The program frees the block, or has it moved. */
static void before_free(const void *block)
{
    if (d_heap == NULL || block == NULL)
        return;
    bool may_be_sampled = atomic_load_explicit(&extended, memory_order_relaxed) != 0 ||
                          shim_is_marked(shim_services.block_filter, (const void *)hidden(block));
    /* In a finalizer druntime frees nothing, and throws at whoever asks for a size. */
    if (!UNLIKELY(may_be_sampled) || druntime.is_in_finalizer())
        return;
    if (UNLIKELY(atomic_load_explicit(&extended, memory_order_relaxed) != 0)) {
        size_t bytes = druntime.size_of(block);
        end_range(block, bytes == 0 ? 1 : bytes);
    } else {
        end_range(block, 1);
    }
}

/* ---- samples ---- */

COLD static bool tell(const void *block, size_t size)
{
    /* A sample without a watch would never die. */
    struct watch *watch = watches_take(&watches);
    if (watch == NULL)
        return false;
    allocsample_id id = countdown_tell(&this_thread, hooks, d_heap, hidden(block), size, 0);
    if (id != ALLOCSAMPLE_NO_SAMPLE)
        watches_begin(watch, hidden(block));
    else
        watches_give_back(&watches, watch);
    return id != ALLOCSAMPLE_NO_SAMPLE;
}

static bool after_block(const void *block, size_t size)
{
    if (block == NULL || d_heap == NULL)
        return false;
    if (UNLIKELY(this_thread.limit == 0))
        countdown_join(&threads, &this_thread);
    return UNLIKELY(!countdown_take(&this_thread, size)) && tell(block, size);
}

/* ---- druntime's functions ---- */

PASS_ON_UNLESS(d_heap, void *, gc_malloc, size_t size, uint32_t attributes, const void *type)
{
    void *block = gc_malloc_next(size, attributes, type);
    after_block(block, size);
    return block;
}

PASS_ON_UNLESS(d_heap, struct block_info, gc_qalloc, size_t size, uint32_t attributes, const void *type)
{
    struct block_info block = gc_qalloc_next(size, attributes, type);
    after_block(block.base, size);
    return block;
}

PASS_ON_UNLESS(d_heap, void *, gc_calloc, size_t size, uint32_t attributes, const void *type)
{
    void *block = gc_calloc_next(size, attributes, type);
    after_block(block, size);
    return block;
}

PASS_ON_UNLESS(d_heap, void *, gc_realloc, void *block, size_t size, uint32_t attributes, const void *type)
{
    before_free(block);
    void *moved = gc_realloc_next(block, size, attributes, type);
    after_block(moved, size);
    return moved;
}

/* A block that grows where it is: what it grew by counts as a block behind the old one. */
PASS_ON_UNLESS(d_heap, size_t, gc_extend, void *block, size_t least, size_t most, const void *type)
{
    size_t before = druntime.is_in_finalizer() ? 0 : druntime.size_of(block);
    size_t after = gc_extend_next(block, least, most, type);
    if (before != 0 && after > before && after_block((const char *)block + before, after - before))
        atomic_fetch_add_explicit(&extended, 1, memory_order_relaxed);
    return after;
}

PASS_ON_UNLESS(d_heap, void, gc_free, void *block)
{
    before_free(block);
    gc_free_next(block);
}

/* The last collection, at the end of the program, finds dead what `main` held. */
PASS_ON_UNLESS(d_heap, void, gc_term, void)
{
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    gc_term_next();
}

PASS_ON_UNLESS(d_heap, void, thread_suspendAll, void)
{
    gc_begin_ns = hooks->now_ns();
    thread_suspendAll_next();
}

PASS_ON_UNLESS(d_heap, void, thread_processGCMarks, struct is_marked is_marked)
{
    thread_processGCMarks_next(is_marked);
    if (atomic_load_explicit(&is_ending, memory_order_relaxed))
        return;
    /* Another compiler may call another way: nothing of ours is the collector's. */
    if (is_marked.function(is_marked.context, &watches) != NOT_OF_THE_COLLECTOR) {
        d_heap = NULL;
        return;
    }
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = ALLOCSAMPLE_MAJOR,
        .id = ++gc_count,
        .begin_ns = gc_begin_ns,
        .end_ns = hooks->now_ns(),
    };
    hooks->gc(d_heap, &gc);
    asked = is_marked;
    watches_each(&watches, 0, resolve);
}

/* ---- start ---- */

/* False: druntime does not have it under its name. */
static bool find(void *slot, const char *name)
{
    void *found = shim_services.find_symbol(name);
    memcpy(slot, &found, sizeof found);
    return found != NULL;
}

/* A druntime that is a part of the program has no such names for others, and calls its own functions directly. */
static bool find_druntime(void)
{
    return find(&druntime.size_of, "gc_sizeOf") && find(&druntime.is_in_finalizer, "gc_inFinalizer") &&
           find(&gc_malloc_next, "gc_malloc") && find(&gc_qalloc_next, "gc_qalloc") && find(&gc_calloc_next, "gc_calloc") &&
           find(&gc_realloc_next, "gc_realloc") && find(&gc_extend_next, "gc_extend") && find(&gc_free_next, "gc_free") &&
           find(&gc_term_next, "gc_term") && find(&thread_suspendAll_next, "thread_suspendAll") &&
           find(&thread_processGCMarks_next, "thread_processGCMarks");
}

static void join(void)
{
    if (!find_druntime()) {
        shim_services.decline("d", "a shared druntime", "is missing");
        return;
    }
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_COLLECTED, .name = "d"};
    if (hooks == NULL || !watches_make(&watches))
        return;
    allocsample_heap *registered = hooks->heap_register(&description);
    if (registered != NULL && countdown_threads_prepare(&threads, hooks, registered))
        d_heap = registered;
}

const struct bridge bridge_d = {
    .name = "d",
    /* Not among those that we stand before. */
    .runtime_symbol = "gc_sizeOf",
    .join = join,
};
