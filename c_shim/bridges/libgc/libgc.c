/* The heap of the Boehm-Demers-Weiser collector (libgc 8), and so of Guile and all that is built on it.
 *
 * Most blocks come from free lists of the thread, which are read by code that is compiled into the program: there is nothing
 * to interpose, and nothing to slow down. What we see is the moment when such a list is empty, and libgc makes a new one of all
 * free blocks of a size in some page. Each block of the list is counted then, and a sample has the stack of that moment: a
 * site causes such moments in proportion to what it allocates. Larger blocks are made one by one. */
#define _GNU_SOURCE
#include "bridge.h"
#include "kit/countdown_threads.h"
#include "kit/next_function.h"
#include "libgc.h"

#include <string.h>

/* GC_EventType */
enum { EVENT_START = 0, EVENT_END = 5 };

enum { STATISTIC_HEAP = 1 };

typedef void (*on_event)(int event);

/* Functions of libgc that we stand before, and what we ask it. */
static struct {
    void (*generic_malloc_many)(size_t size, int kind, void **list);
    void *(*malloc_kind_global)(size_t size, int kind);
    void *(*generic_malloc)(size_t size, int kind);
    void *(*generic_malloc_ignore_off_page)(size_t size, int kind);
    void *(*generic_malloc_uncollectable)(size_t size, int kind);
    void (*free)(void *block);
    void (*set_on_collection_event)(on_event callback);
    on_event (*get_on_collection_event)(void);
    size_t (*heap_size)(void);
} libgc;

static const allocsample_hooks *hooks;
static allocsample_heap *heap; /* NULL: the bridge is off */
static struct countdown_threads threads;

/* Zero until the thread's first block. */
static _Thread_local struct countdown this_thread;
/* libgc's functions call each other, and allocate for links: only the outermost call counts. */
static _Thread_local bool is_inside;

/* ---- collections ---- */

static _Atomic(on_event) users_callback;
static _Atomic(bool) is_watching;
static uint64_t gc_begin_ns, gc_count; /* with libgc's lock held */

static void on_collection_event(int event)
{
    on_event users = atomic_load_explicit(&users_callback, memory_order_relaxed);
    if (event == EVENT_START)
        gc_begin_ns = hooks->now_ns();
    if (event == EVENT_END && gc_begin_ns != 0) {
        uint64_t values[] = {STATISTIC_HEAP, libgc.heap_size()};
        allocsample_gc gc = {
            .size = sizeof gc,
            .kind = ALLOCSAMPLE_MAJOR,
            .id = ++gc_count,
            .begin_ns = gc_begin_ns,
            .end_ns = hooks->now_ns(),
            .statistics = 1,
            .values = values,
        };
        hooks->gc(heap, &gc);
        libgc_tell_dead();
    }
    if (users != NULL)
        users(event);
}

/* libgc is initialised, and the caller does not hold its lock. */
static void watch_collections(void)
{
    if (atomic_exchange_explicit(&is_watching, true, memory_order_relaxed))
        return;
    atomic_store_explicit(&users_callback, libgc.get_on_collection_event(), memory_order_relaxed);
    libgc.set_on_collection_event(on_collection_event);
}

/* ---- samples ---- */

/* The block passes the limit. */
static void tell(const void *block, size_t size)
{
    allocsample_id id = countdown_tell(&this_thread, hooks, heap, libgc_hidden(block), size, 0);
    if (id != ALLOCSAMPLE_NO_SAMPLE)
        libgc_link(block);
}

static void *next_of(const void *block)
{
    return *(void *const *)block;
}

/* All blocks of a list are `size` bytes. Those that are told are the first ones: they go to the caller, whose stack it is. */
COLD static void tell_list(void *list, size_t size)
{
    void *told = list;
    for (void *block = list; block != NULL; block = next_of(block)) {
        if (countdown_take(&this_thread, size))
            continue;
        tell(told, size);
        told = next_of(told);
    }
}

static void after_list(void *list, size_t size)
{
    size_t bytes = 0;
    for (const void *block = list; block != NULL; block = next_of(block))
        bytes += size;
    if (UNLIKELY(this_thread.limit == 0)) {
        countdown_join(&threads, &this_thread);
        watch_collections();
    }
    if (bytes > 0 && UNLIKELY(!countdown_take(&this_thread, bytes)))
        tell_list(list, size);
}

static void after_block(const void *block, size_t size)
{
    if (block == NULL)
        return;
    if (UNLIKELY(this_thread.limit == 0)) {
        countdown_join(&threads, &this_thread);
        watch_collections();
    }
    if (UNLIKELY(!countdown_take(&this_thread, size)))
        tell(block, size);
}

/* ---- libgc's functions ---- */

/* Leaves the slot as it is if there is no such function: a libgc in a namespace of its own, whose caller is not. */
COLD static void find(void *slot, const char *name, const void *caller)
{
    void *found = next_function(name, caller);
    if (found != NULL)
        memcpy(slot, &found, sizeof found);
}

/* Where the function that we stand before is; false if it is nowhere. Its caller is told then what libgc would say that
 * has no memory left. */
#define FIND_NEXT(FUNCTION)                                                                                            \
    ({                                                                                                                 \
        if (UNLIKELY(libgc.FUNCTION == NULL))                                                                          \
            find(&libgc.FUNCTION, "GC_" #FUNCTION, __builtin_return_address(0));                                       \
        libgc.FUNCTION != NULL;                                                                                        \
    })

EXPORT void GC_generic_malloc_many(size_t size, int kind, void **list)
{
    if (UNLIKELY(!FIND_NEXT(generic_malloc_many))) {
        *list = NULL;
        return;
    }
    if (heap == NULL || is_inside) {
        libgc.generic_malloc_many(size, kind, list);
        return;
    }
    is_inside = true;
    libgc.generic_malloc_many(size, kind, list);
    after_list(*list, size);
    is_inside = false;
}

/* One block for each call. */
#define ONE_BLOCK(FUNCTION)                                                                                            \
    EXPORT void *GC_##FUNCTION(size_t size, int kind)                                                                  \
    {                                                                                                                  \
        if (UNLIKELY(!FIND_NEXT(FUNCTION)))                                                                            \
            return NULL;                                                                                               \
        if (heap == NULL || is_inside)                                                                                 \
            return libgc.FUNCTION(size, kind);                                                                         \
        is_inside = true;                                                                                              \
        void *block = libgc.FUNCTION(size, kind);                                                                      \
        after_block(block, size);                                                                                      \
        is_inside = false;                                                                                             \
        return block;                                                                                                  \
    }
ONE_BLOCK(malloc_kind_global)
ONE_BLOCK(generic_malloc)
ONE_BLOCK(generic_malloc_ignore_off_page)
ONE_BLOCK(generic_malloc_uncollectable)

EXPORT void GC_free(void *block)
{
    if (UNLIKELY(!FIND_NEXT(free)))
        return;
    if (heap != NULL && block != NULL && shim_is_marked(shim_services.block_filter, (const void *)libgc_hidden(block))) {
        libgc_unlink(block);
        hooks->freed(heap, libgc_hidden(block));
    }
    libgc.free(block);
}

/* The program's own callback is called by ours. */
EXPORT void GC_set_on_collection_event(on_event callback)
{
    if (UNLIKELY(!FIND_NEXT(set_on_collection_event)))
        return;
    if (atomic_load_explicit(&is_watching, memory_order_relaxed))
        atomic_store_explicit(&users_callback, callback, memory_order_relaxed);
    else
        libgc.set_on_collection_event(callback);
}

EXPORT on_event GC_get_on_collection_event(void)
{
    if (UNLIKELY(!FIND_NEXT(get_on_collection_event)))
        return NULL;
    return atomic_load_explicit(&is_watching, memory_order_relaxed)
               ? atomic_load_explicit(&users_callback, memory_order_relaxed)
               : libgc.get_on_collection_event();
}

/* ---- start ---- */

static void join(void)
{
    void *heap_size = shim_services.find_symbol("GC_get_heap_size");
    void *many = shim_services.find_symbol("GC_generic_malloc_many");
    /* New in libgc 8: without it, blocks of medium size would be missed. */
    void *global = shim_services.find_symbol("GC_malloc_kind_global");
    if (heap_size == NULL || many == NULL || global == NULL)
        return;
    memcpy(&libgc.heap_size, &heap_size, sizeof heap_size);
    find(&libgc.set_on_collection_event, "GC_set_on_collection_event", many);
    find(&libgc.get_on_collection_event, "GC_get_on_collection_event", many);
    if (libgc.set_on_collection_event == NULL || libgc.get_on_collection_event == NULL)
        return;
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_COLLECTED, .name = "libgc", .flags = ALLOCSAMPLE_SCANS_STACKS};
    allocsample_heap *registered = hooks == NULL ? NULL : hooks->heap_register(&description);
    if (registered == NULL || !libgc_links_prepare(hooks, registered) ||
        !countdown_threads_prepare(&threads, hooks, registered))
        return;
    hooks->define_statistic(registered, STATISTIC_HEAP, "heap", "bytes");
    heap = registered;
}

const struct bridge bridge_libgc = {
    .name = "libgc",
    .runtime_symbol = "GC_get_heap_size",
    .scanning_collector_symbol = "GC_get_stack_base",
    .join = join,
    .after_fork_in_child = libgc_links_after_fork_in_child,
};
