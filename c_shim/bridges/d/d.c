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
#include "kit/next_function.h"
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

/* Functions of druntime that we stand before, and what we ask it. */
static struct {
    void *(*malloc)(size_t size, uint32_t attributes, const void *type);
    struct block_info (*qalloc)(size_t size, uint32_t attributes, const void *type);
    void *(*calloc)(size_t size, uint32_t attributes, const void *type);
    void *(*realloc)(void *block, size_t size, uint32_t attributes, const void *type);
    size_t (*extend)(void *block, size_t least, size_t most, const void *type);
    void (*free)(void *block);
    void (*term)(void);
    void (*suspend_all)(void);
    void (*process_marks)(struct is_marked is_marked);
    size_t (*size_of)(const void *block);
    bool (*is_in_finalizer)(void);
} druntime;

static const allocsample_hooks *hooks;
static _Atomic(allocsample_heap *) heap; /* NULL: the bridge is off */
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
    hooks->freed(heap, watch->handle);
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
    hooks->freed(heap, watch->handle);
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
    if (heap == NULL || block == NULL)
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
    allocsample_id id = countdown_tell(&this_thread, hooks, heap, hidden(block), size, 0);
    if (id != ALLOCSAMPLE_NO_SAMPLE)
        watches_begin(watch, hidden(block));
    else
        watches_give_back(&watches, watch);
    return id != ALLOCSAMPLE_NO_SAMPLE;
}

static bool after_block(const void *block, size_t size)
{
    if (block == NULL || heap == NULL)
        return false;
    if (UNLIKELY(this_thread.limit == 0))
        countdown_join(&threads, &this_thread);
    return UNLIKELY(!countdown_take(&this_thread, size)) && tell(block, size);
}

/* ---- druntime's functions ---- */

/* Where the function that we stand before is; false if it is nowhere. */
#define FIND_NEXT(FUNCTION, NAME)                                                                                      \
    ({                                                                                                                 \
        if (UNLIKELY(druntime.FUNCTION == NULL))                                                                       \
            find(&druntime.FUNCTION, NAME, __builtin_return_address(0));                                               \
        druntime.FUNCTION != NULL;                                                                                     \
    })

COLD static void find(void *slot, const char *name, const void *caller)
{
    void *found = next_function(name, caller);
    if (found != NULL)
        memcpy(slot, &found, sizeof found);
}

EXPORT void *gc_malloc(size_t size, uint32_t attributes, const void *type)
{
    if (UNLIKELY(!FIND_NEXT(malloc, "gc_malloc")))
        return NULL;
    void *block = druntime.malloc(size, attributes, type);
    after_block(block, size);
    return block;
}

EXPORT struct block_info gc_qalloc(size_t size, uint32_t attributes, const void *type)
{
    if (UNLIKELY(!FIND_NEXT(qalloc, "gc_qalloc")))
        return (struct block_info){0};
    struct block_info block = druntime.qalloc(size, attributes, type);
    after_block(block.base, size);
    return block;
}

EXPORT void *gc_calloc(size_t size, uint32_t attributes, const void *type)
{
    if (UNLIKELY(!FIND_NEXT(calloc, "gc_calloc")))
        return NULL;
    void *block = druntime.calloc(size, attributes, type);
    after_block(block, size);
    return block;
}

EXPORT void *gc_realloc(void *block, size_t size, uint32_t attributes, const void *type)
{
    if (UNLIKELY(!FIND_NEXT(realloc, "gc_realloc")))
        return NULL;
    before_free(block);
    void *moved = druntime.realloc(block, size, attributes, type);
    after_block(moved, size);
    return moved;
}

/* A block that grows where it is: what it grew by counts as a block behind the old one. */
EXPORT size_t gc_extend(void *block, size_t least, size_t most, const void *type)
{
    if (UNLIKELY(!FIND_NEXT(extend, "gc_extend")))
        return 0;
    size_t before = heap == NULL || druntime.is_in_finalizer() ? 0 : druntime.size_of(block);
    size_t after = druntime.extend(block, least, most, type);
    if (before != 0 && after > before && after_block((const char *)block + before, after - before))
        atomic_fetch_add_explicit(&extended, 1, memory_order_relaxed);
    return after;
}

EXPORT void gc_free(void *block)
{
    if (UNLIKELY(!FIND_NEXT(free, "gc_free")))
        return;
    before_free(block);
    druntime.free(block);
}

/* The last collection, at the end of the program, finds dead what `main` held. */
EXPORT void gc_term(void)
{
    if (UNLIKELY(!FIND_NEXT(term, "gc_term")))
        return;
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    druntime.term();
}

EXPORT void thread_suspendAll(void)
{
    if (UNLIKELY(!FIND_NEXT(suspend_all, "thread_suspendAll")))
        return;
    if (heap != NULL)
        gc_begin_ns = hooks->now_ns();
    druntime.suspend_all();
}

EXPORT void thread_processGCMarks(struct is_marked is_marked)
{
    if (UNLIKELY(!FIND_NEXT(process_marks, "thread_processGCMarks")))
        return;
    druntime.process_marks(is_marked);
    if (heap == NULL || atomic_load_explicit(&is_ending, memory_order_relaxed))
        return;
    /* Another compiler may call another way: nothing of ours is the collector's. */
    if (is_marked.function(is_marked.context, &watches) != NOT_OF_THE_COLLECTOR) {
        heap = NULL;
        return;
    }
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = ALLOCSAMPLE_MAJOR,
        .id = ++gc_count,
        .begin_ns = gc_begin_ns,
        .end_ns = hooks->now_ns(),
    };
    hooks->gc(heap, &gc);
    asked = is_marked;
    watches_each(&watches, 0, resolve);
}

/* ---- start ---- */

static void join(void)
{
    /* A druntime that is a part of the program calls its own functions directly. */
    void *size_of = shim_services.find_symbol("gc_sizeOf");
    void *in_finalizer = shim_services.find_symbol("gc_inFinalizer");
    bool is_known = in_finalizer != NULL && shim_services.find_symbol("gc_qalloc") != NULL && shim_services.find_symbol("thread_processGCMarks") != NULL;
    if (size_of == NULL || !is_known) {
        shim_services.decline("d", "a shared druntime", "is missing");
        return;
    }
    memcpy(&druntime.size_of, &size_of, sizeof size_of);
    memcpy(&druntime.is_in_finalizer, &in_finalizer, sizeof in_finalizer);
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_COLLECTED, .name = "d", .flags = ALLOCSAMPLE_SCANS_STACKS};
    if (hooks == NULL || !watches_make(&watches))
        return;
    allocsample_heap *registered = hooks->heap_register(&description);
    if (registered != NULL && countdown_threads_prepare(&threads, hooks, registered))
        heap = registered;
}

const struct bridge bridge_d = {
    .name = "d",
    /* Neither is among those that we stand before. */
    .runtime_symbol = "gc_sizeOf",
    .scanning_collector_symbol = "thread_scanAllType",
    .join = join,
};
