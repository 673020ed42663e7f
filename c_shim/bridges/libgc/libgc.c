/* The heap of the Boehm-Demers-Weiser collector (libgc 8), and so of Guile and all that is built on it.
 *
 * Most blocks come from free lists of the thread, which are read by code that is compiled into the program: there is nothing
 * to interpose, and nothing to slow down. What we see is the moment when such a list is empty, and libgc makes a new one of all
 * free blocks of a size in some page. Each block of the list is counted then, and a sample has the stack of that moment: a
 * site causes such moments in proportion to what it allocates. Larger blocks are made one by one.
 *
 * Under `run` our functions come before libgc's by their names. In a process that was attached to, the slots are changed through
 * which the program, its libraries and libgc itself call them, as those of malloc are. */
#define _GNU_SOURCE
#include "libgc.h"

#include "kit/countdown_threads.h"
#include "kit/next_function.h"
#include "kit/resume.h"

#include <string.h>

/* Functions of libgc that we stand before, and what we ask it. */
static struct {
    void (*generic_malloc_many)(size_t size, int kind, void **list);
    void *(*malloc_kind_global)(size_t size, int kind);
    void *(*generic_malloc)(size_t size, int kind);
    void *(*generic_malloc_ignore_off_page)(size_t size, int kind);
    void *(*generic_malloc_uncollectable)(size_t size, int kind);
    void (*free)(void *block);
    void (*set_on_collection_event)(libgc_on_event callback);
    libgc_on_event (*get_on_collection_event)(void);
} libgc;

static const allocsample_hooks *hooks;
static allocsample_heap *heap; /* NULL: the bridge is off */
static struct countdown_threads threads;

/* Zero until the thread's first block. */
static _Thread_local struct countdown this_thread;
/* libgc's functions call each other, and allocate for links: only the outermost call counts. */
static _Thread_local bool is_inside;

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

/* Before something is counted. The calling thread does not hold libgc's lock, and libgc is initialised. */
static void prepare_thread(void)
{
    if (UNLIKELY(this_thread.limit == 0))
        countdown_join(&threads, &this_thread);
    if (LIKELY(libgc_is_watched()))
        return;
    libgc_exclude_own_data();
    libgc_watch();
}

static void after_list(void *list, size_t size)
{
    size_t bytes = 0;
    for (const void *block = list; block != NULL; block = next_of(block))
        bytes += size;
    prepare_thread();
    if (bytes > 0 && UNLIKELY(!countdown_take(&this_thread, bytes)))
        tell_list(list, size);
}

static void after_block(const void *block, size_t size)
{
    if (block == NULL)
        return;
    prepare_thread();
    if (UNLIKELY(!countdown_take(&this_thread, size)))
        tell(block, size);
}

/* ---- libgc's functions ---- */

/* The bodies are static: a reference to an exported name is bound to libgc's function in a process that was attached to. */
#define EXPORTED(RESULT, FUNCTION, ARGUMENTS) EXPORT RESULT GC_##FUNCTION ARGUMENTS __attribute__((alias("own_" #FUNCTION)));

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

static void own_generic_malloc_many(size_t size, int kind, void **list)
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
EXPORTED(void, generic_malloc_many, (size_t size, int kind, void **list))

/* One block for each call. */
#define ONE_BLOCK(FUNCTION)                                                                                            \
    static void *own_##FUNCTION(size_t size, int kind)                                                                 \
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
    }                                                                                                                  \
    EXPORTED(void *, FUNCTION, (size_t size, int kind))
ONE_BLOCK(malloc_kind_global)
ONE_BLOCK(generic_malloc)
ONE_BLOCK(generic_malloc_ignore_off_page)
ONE_BLOCK(generic_malloc_uncollectable)

static void own_free(void *block)
{
    if (UNLIKELY(!FIND_NEXT(free)))
        return;
    if (heap != NULL && block != NULL && shim_is_marked(shim_services.block_filter, (const void *)libgc_hidden(block))) {
        libgc_unlink(block);
        hooks->freed(heap, libgc_hidden(block));
    }
    libgc.free(block);
}
EXPORTED(void, free, (void *block))

/* The program's own callback is called by ours. */
static void own_set_on_collection_event(libgc_on_event callback)
{
    if (UNLIKELY(!FIND_NEXT(set_on_collection_event)))
        return;
    if (heap != NULL)
        libgc_set_users_callback(callback);
    else
        libgc.set_on_collection_event(callback);
}
EXPORTED(void, set_on_collection_event, (libgc_on_event callback))

static libgc_on_event own_get_on_collection_event(void)
{
    if (UNLIKELY(!FIND_NEXT(get_on_collection_event)))
        return NULL;
    return heap != NULL ? libgc_users_callback() : libgc.get_on_collection_event();
}
EXPORTED(libgc_on_event, get_on_collection_event, (void))

/* ---- start ---- */

static const char *const required[] = {
    "GC_generic_malloc_many", "GC_malloc_kind_global", /* new in libgc 8: without it, blocks of medium size would be missed */
    "GC_set_on_collection_event", "GC_get_on_collection_event",
};

/* True also if there is no memory for it. */
static bool is_missing(libgc_finder *find_function)
{
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++)
        if (find_function(required[i]) == NULL)
            return true;
    libgc_roots_prepare(find_function);
    return !libgc_links_prepare(find_function);
}

/* Once. False: there is no memory. */
static bool make_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_COLLECTED, .name = "libgc", .flags = ALLOCSAMPLE_SCANS_STACKS};
    allocsample_heap *registered = hooks == NULL ? NULL : hooks->heap_register(&description);
    if (registered == NULL || !countdown_threads_prepare(&threads, hooks, registered))
        return false;
    libgc_links_are_of(hooks, registered);
    heap = registered;
    return true;
}

static void begin_collections(void *heap_size)
{
    struct libgc_events events = {libgc.set_on_collection_event, libgc.get_on_collection_event, NULL};
    memcpy(&events.heap_size, &heap_size, sizeof heap_size);
    libgc_collections_begin(hooks, heap, &events);
}

static void join(void)
{
    void *heap_size = shim_services.find_symbol("GC_get_heap_size");
    void *many = shim_services.find_symbol("GC_generic_malloc_many");
    if (heap_size == NULL || is_missing(shim_services.find_symbol))
        return;
    find(&libgc.set_on_collection_event, "GC_set_on_collection_event", many);
    find(&libgc.get_on_collection_event, "GC_get_on_collection_event", many);
    if (libgc.set_on_collection_event != NULL && libgc.get_on_collection_event != NULL && make_heap())
        begin_collections(heap_size);
}

/* ---- attach ---- */

#define CALLS(CALL)                                                                                                    \
    CALL(generic_malloc_many)                                                                                          \
    CALL(malloc_kind_global)                                                                                           \
    CALL(generic_malloc)                                                                                               \
    CALL(generic_malloc_ignore_off_page)                                                                               \
    CALL(generic_malloc_uncollectable)                                                                                 \
    CALL(free)                                                                                                         \
    CALL(set_on_collection_event)                                                                                      \
    CALL(get_on_collection_event)
#define CALL(FUNCTION) {"GC_" #FUNCTION, (void *)own_##FUNCTION, NULL},
static struct shim_redirection calls[] = {CALLS(CALL)};
#undef CALL
#define CALL(FUNCTION) &libgc.FUNCTION,
static void *const places[] = {CALLS(CALL)};
#undef CALL
enum { COUNT = sizeof calls / sizeof calls[0] };

static void *find_late(const char *name)
{
    struct shim_redirection row = {.name = name};
    shim_services.find_definitions(&row, 1);
    return row.next;
}

/* Threads may be in our functions since before a detach, and go on to the same ones. */
static void redirect(void)
{
    uint64_t left_alone = 0;
    shim_services.find_definitions(calls, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        if (calls[i].next != NULL)
            memcpy(places[i], &calls[i].next, sizeof calls[i].next);
    begin_collections(find_late("GC_get_heap_size"));
    if (shim_services.redirect_calls(calls, COUNT, &left_alone) && left_alone == 0)
        return;
    uint64_t now = hooks->now_ns();
    hooks->marker(heap, "note: some calls of libgc are not sampled: there is code whose calls could not be redirected", now, now);
}

static void attach(void)
{
    static bool is_declined;
    if (find_late("GC_get_heap_size") == NULL)
        return;
    if (is_missing(find_late) || (heap == NULL && !make_heap())) {
        if (!is_declined)
            shim_services.decline("libgc", "libgc", "lacks a function, or there is no memory for its bridge");
        is_declined = true;
        return;
    }
    resume_heap(hooks, heap);
    redirect();
    libgc_tell_heap();
}

/* Calls are no longer redirected. Blocks keep their links until they are dead: in a process with one thread libgc takes no lock, so
 * that only that thread may remove one. */
static void detach(void)
{
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    libgc_collections_end();
}

static void after_fork_in_child(void)
{
    libgc_links_after_fork_in_child();
    libgc_collections_after_fork_in_child();
}

const struct bridge bridge_libgc = {
    .name = "libgc",
    .runtime_symbol = "GC_get_heap_size",
    .scanning_collector_symbol = "GC_get_stack_base",
    .join = join,
    .attach = attach,
    .detach = detach,
    .after_fork_in_child = after_fork_in_child,
};
