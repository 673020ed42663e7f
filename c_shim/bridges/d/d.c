/* The heap of D's collector, in programs that use a shared druntime (libdruntime-ldc-shared.so, libgphobos.so).
 *
 * Code of D calls the collector by C names, through the table of its object, so that we stand before them as before malloc. After an
 * attach the slots of these tables lead here, and back at a detach. Nothing tells when a block dies, but at the end of a collection's
 * marking, while all threads are stopped, druntime calls a function of its own with another one that says which blocks are marked: those
 * of our samples that are not are about to be freed. druntime's slots for it lead here.
 *
 * druntime stops threads with signals, wherever they are. So no lock is held here, and a key is an inverted address: the
 * collector takes every word on a stack that looks like an address for a reference.
 *
 * An attach may come in the middle of a collection. Its thread is none of D's, so that nobody stops it, and it takes no lock of the
 * collector's. The heap is switched on after all slots were changed. A thread that allocates a sample has found the heap on, and has held
 * the collector's lock afterwards: a collection that has to look at the sample takes that lock later, finds the heap on, too, and is seen
 * from its beginning. The marks of one that began earlier are not looked at: no sample is older. */
#define _GNU_SOURCE
#include "bridge.h"
#include "d.h"
#include "kit/countdown_threads.h"
#include "kit/pass_on.h"
#include "kit/resume.h"
#include "kit/watches.h"

#include <dlfcn.h>
#include <string.h>

/* Blocks of a page or more are whole pages, with a few bytes of the array's own: an array that grows beyond them grows into the next. */
enum { PAGE = 4096, ARRAY_BYTES = 64 };

/* An array of D by value: `void[]`. */
struct slice {
    size_t length;
    void *start;
};

static struct d_druntime druntime;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;             /* that was registered, or NULL */
HIDDEN _Atomic(allocsample_heap *) d_heap; /* NULL: the bridge is off, and the entries pass all calls on */
static struct countdown_threads threads;
static struct watches watches;
static _Atomic(uint64_t) extended; /* samples of what a block grew by: they lie inside of it */
static _Atomic(bool) is_ending;
static _Atomic(bool) has_failed;
static bool is_late; /* calls come by slots that were changed, as after an attach */
static bool is_started;
static _Atomic(uint64_t) gc_begin_ns; /* of the collection whose marks were not looked at yet; 0: there is none */
static _Atomic(uint64_t) gc_count;
static _Atomic(uint64_t) unseen_before; /* collections that were not seen, as the bridge was off; FIRST_UNKNOWN: not known yet */
#define FIRST_UNKNOWN (UINT64_C(1) << 63)

/* Zero until the thread's first block. */
static _Thread_local struct countdown this_thread;

static uintptr_t hidden(const void *block)
{
    return ~(uintptr_t)block;
}

static allocsample_heap *heap_now(void)
{
    return atomic_load_explicit(&d_heap, memory_order_relaxed);
}

/* ---- deaths ---- */

static struct d_is_marked asked; /* while threads are stopped */

static void end(struct watch *watch, uint32_t generation)
{
    (void)generation;
    hooks->freed(heap, watch->handle);
    watches_give_back(&watches, watch);
}

static void resolve(struct watch *watch, uint32_t generation)
{
    if (asked.function(asked.context, (void *)~watch->handle) == D_NOT_MARKED)
        end(watch, generation);
}

/* Of the one call of `watches_each` that ends one block, or all that lie in it: on this thread. */
static _Thread_local struct {
    uintptr_t start, end;
} ended;

static void end_if_inside(struct watch *watch, uint32_t generation)
{
    uintptr_t address = ~watch->handle;
    if (address >= ended.start && address < ended.end)
        end(watch, generation);
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
    if (heap_now() == NULL || block == NULL)
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

#define SAMPLED_UNTIL_THEN "its blocks are sampled only until then, and none counts as live"

/* Deaths are not noticed in this druntime: without them the heap would look like one leak. */
COLD static void fail(const char *note)
{
    if (atomic_exchange(&has_failed, true))
        return;
    atomic_store(&d_heap, NULL);
    uint64_t now_ns = hooks->now_ns();
    hooks->marker(heap, note, now_ns, now_ns);
    watches_each(&watches, 0, end);
}

/* ---- samples ---- */

/* Whether all collections are seen that have ended: druntime counts them. One may have begun before the bridge was on. */
static bool sees_collections(void)
{
    uint64_t before = atomic_load(&unseen_before);
    if (before == FIRST_UNKNOWN)
        return true;
    /* First what has ended: this thread may be away for many collections between the two, which are all seen then. */
    uint64_t ended_ones = druntime.collections().count;
    return ended_ones <= before + atomic_load(&gc_count) + 1;
}

COLD static bool tell(allocsample_heap *to, const void *block, size_t size)
{
    if (!sees_collections()) {
        fail("note: D's collector calls its functions in another way than known ones: " SAMPLED_UNTIL_THEN);
        return false;
    }
    /* A sample without a watch would never die. */
    struct watch *watch = watches_take(&watches);
    if (watch == NULL)
        return false;
    allocsample_id id = countdown_tell(&this_thread, hooks, to, hidden(block), size, 0);
    if (id != ALLOCSAMPLE_NO_SAMPLE)
        watches_begin(watch, hidden(block));
    else
        watches_give_back(&watches, watch);
    return id != ALLOCSAMPLE_NO_SAMPLE;
}

static bool after_block(const void *block, size_t size)
{
    allocsample_heap *to = heap_now();
    if (block == NULL || to == NULL)
        return false;
    if (UNLIKELY(this_thread.limit == 0))
        countdown_join(&threads, &this_thread);
    return UNLIKELY(!countdown_take(&this_thread, size)) && tell(to, block, size);
}

/* The block has grown where it is: what it grew by counts as a block behind the old one. */
static void after_growth(const void *block, size_t before, size_t after)
{
    if (before != 0 && after > before && after_block((const char *)block + before, after - before))
        atomic_fetch_add_explicit(&extended, 1, memory_order_relaxed);
}

/* ---- functions that code of D calls ---- */

PASS_ON_UNLESS(d_heap, void *, gc_malloc, size_t size, uint32_t attributes, const void *type)
{
    void *block = gc_malloc_next(size, attributes, type);
    after_block(block, size);
    return block;
}

PASS_ON_UNLESS(d_heap, struct d_block, gc_qalloc, size_t size, uint32_t attributes, const void *type)
{
    struct d_block block = gc_qalloc_next(size, attributes, type);
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

PASS_ON_UNLESS(d_heap, size_t, gc_extend, void *block, size_t least, size_t most, const void *type)
{
    size_t before = druntime.is_in_finalizer() ? 0 : druntime.size_of(block);
    size_t after = gc_extend_next(block, least, most, type);
    after_growth(block, before, after);
    return after;
}

static struct d_block block_of(const void *address)
{
    return druntime.is_in_finalizer() ? (struct d_block){0} : druntime.query(address);
}

static void after_array(struct d_block before)
{
    struct d_block after = block_of(before.base);
    if (after.base == before.base)
        after_growth(after.base, before.size, after.size);
}

/* Since 2.111, arrays that are appended to grow by these two instead. */
PASS_ON_UNLESS(d_heap, bool, gc_expandArrayUsed, struct slice array, size_t used, bool is_shared)
{
    uintptr_t start = (uintptr_t)array.start;
    if (LIKELY((start + array.length - ARRAY_BYTES) / PAGE == (start + used + ARRAY_BYTES) / PAGE))
        return gc_expandArrayUsed_next(array, used, is_shared);
    struct d_block before = block_of(array.start);
    bool has_room = gc_expandArrayUsed_next(array, used, is_shared);
    if (has_room)
        after_array(before);
    return has_room;
}

PASS_ON_UNLESS(d_heap, size_t, gc_reserveArrayCapacity, struct slice array, size_t wanted, bool is_shared)
{
    if (wanted <= array.length)
        return gc_reserveArrayCapacity_next(array, wanted, is_shared);
    struct d_block before = block_of(array.start);
    size_t room = gc_reserveArrayCapacity_next(array, wanted, is_shared);
    if (room != 0)
        after_array(before);
    return room;
}

PASS_ON_UNLESS(d_heap, void, gc_free, void *block)
{
    before_free(block);
    gc_free_next(block);
}

/* Ends of blocks first: a sample is not to miss its own. */
static const struct d_call calls[] = {
    {"gc_free", gc_free_entry, &gc_free_next, false},
    {"gc_realloc", gc_realloc_entry, &gc_realloc_next, false},
    {"gc_extend", gc_extend_entry, &gc_extend_next, false},
    {"gc_expandArrayUsed", gc_expandArrayUsed_entry, &gc_expandArrayUsed_next, true},
    {"gc_reserveArrayCapacity", gc_reserveArrayCapacity_entry, &gc_reserveArrayCapacity_next, true},
    {"gc_malloc", gc_malloc_entry, &gc_malloc_next, false},
    {"gc_qalloc", gc_qalloc_entry, &gc_qalloc_next, false},
    {"gc_calloc", gc_calloc_entry, &gc_calloc_next, false},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* ---- functions that druntime calls itself ---- */

/* The last collection, at the end of the program, finds dead what `main` held. */
static void terminate(void)
{
    atomic_store_explicit(&is_ending, true, memory_order_relaxed);
    druntime.terminate();
}

static void suspend_all(void)
{
    if (heap_now() != NULL)
        atomic_store_explicit(&gc_begin_ns, hooks->now_ns(), memory_order_relaxed);
    druntime.suspend_all();
}

static bool is_code(uintptr_t address)
{
    return address >= druntime.code && address < druntime.code_end;
}

/* Of the collection that has begun at `begin_ns`. */
static void look_at_marks(struct d_is_marked is_marked, uint64_t begin_ns)
{
    allocsample_heap *of = heap_now();
    uint64_t count = atomic_fetch_add_explicit(&gc_count, 1, memory_order_relaxed) + 1;
    if (of == NULL || atomic_load_explicit(&is_ending, memory_order_relaxed))
        return;
    /* Another compiler may call another way: nothing of ours is the collector's. */
    if (is_marked.function == NULL || is_marked.function(is_marked.context, &watches) != D_NOT_OF_THE_COLLECTOR) {
        fail("note: D's collector marks blocks in another way than known ones: " SAMPLED_UNTIL_THEN);
        return;
    }
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = ALLOCSAMPLE_MAJOR,
        .id = count,
        .begin_ns = begin_ns,
        .end_ns = hooks->now_ns(),
    };
    hooks->gc(of, &gc);
    asked = is_marked;
    watches_each(&watches, 0, resolve);
}

/* When the collection has begun that is not looked at yet; 0: there is none. */
static uint64_t take_collection(void)
{
    return atomic_exchange_explicit(&gc_begin_ns, 0, memory_order_relaxed);
}

static void marks_of_all(struct d_is_marked is_marked)
{
    druntime.marks_of_all(is_marked);
    uint64_t begin_ns = take_collection();
    if (begin_ns != 0)
        look_at_marks(is_marked, begin_ns);
}

/* Called for every thread, with what it caches and a delegate, in the order of the compiler: the delegate's second word is code. */
static void marks_of_thread(uintptr_t first, uintptr_t second, uintptr_t third)
{
    druntime.marks_of_thread(first, second, third);
    uint64_t begin_ns = take_collection();
    if (begin_ns == 0)
        return;
    struct d_is_marked is_marked = {0};
    uintptr_t function = is_code(third) ? third : is_code(second) ? second : 0;
    uintptr_t context = function == third ? second : first;
    memcpy(&is_marked.context, &context, sizeof context);
    memcpy(&is_marked.function, &function, sizeof function);
    look_at_marks(is_marked, begin_ns);
}

static const struct d_watched watched = {
    .terminate = terminate,
    .suspend_all = suspend_all,
    .marks_of_all = marks_of_all,
    .marks_of_thread = marks_of_thread,
};

/* ---- start ---- */

static void *find_global(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

static bool find_calls(void)
{
    /* Where our entry is the first of its name, as under `run`, calls come to it by themselves. */
    is_late = find_global("gc_malloc") != (void *)gc_malloc_entry;
    for (size_t i = 0; i < CALLS; i++) {
        void *found = is_late ? find_global(calls[i].name) : shim_services.find_symbol(calls[i].name);
        memcpy(calls[i].next, &found, sizeof found);
        if (found == NULL && !calls[i].is_optional)
            return false;
    }
    return true;
}

static bool make_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_COLLECTED, .name = "d"};
    if (hooks == NULL || !watches_make(&watches))
        return false;
    allocsample_heap *registered = hooks->heap_register(&description);
    if (registered != NULL && countdown_threads_prepare(&threads, hooks, registered))
        heap = registered;
    return heap != NULL;
}

/* False, and the reason is told: D is left alone. */
static bool prepare(void)
{
    const char *missing = d_druntime_find(&druntime);
    if (missing == NULL && !find_calls())
        missing = "gc_malloc";
    if (missing != NULL)
        shim_services.decline("d", missing, "is missing");
    return missing == NULL && make_heap();
}

/* Starts sampling. */
static void start(void)
{
    if (!d_druntime_watch(&druntime, &watched)) {
        atomic_store(&has_failed, true);
        shim_services.decline("d", "druntime's function for marks", "is called directly");
        return;
    }
    if (is_late)
        d_druntime_enter(calls, CALLS, 0);
    atomic_store(&gc_begin_ns, 0);
    atomic_store(&unseen_before, FIRST_UNKNOWN);
    atomic_store(&d_heap, heap);
    is_started = true;
    /* A collection that has been seen and has not ended is not counted by druntime yet: one more may be unseen then. */
    uint64_t seen = atomic_load(&gc_count);
    atomic_store(&unseen_before, druntime.collections().count - seen);
}

static void join(void)
{
    if (prepare())
        start();
}

static void attach(void)
{
    static bool is_tried;
    if (heap == NULL) {
        if (is_tried || find_global("gc_sizeOf") == NULL)
            return; /* most processes that are attached to end here */
        is_tried = true;
        if (!prepare())
            return;
    }
    if (atomic_load(&has_failed))
        return;
    resume_heap(hooks, heap);
    start();
}

static void detach(void)
{
    if (!is_started)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store(&d_heap, NULL);
    is_started = false;
    if (is_late)
        d_druntime_leave(calls, CALLS);
    d_druntime_unwatch(&druntime, &watched);
}

/* A library of D that was opened after the attach. */
static bool look(uintptr_t object)
{
    if (is_late && heap_now() != NULL)
        d_druntime_enter(calls, CALLS, object);
    return true;
}

const struct bridge bridge_d = {
    .name = "d",
    /* Not among those that we stand before. */
    .runtime_symbol = "gc_sizeOf",
    .join = join,
    .attach = attach,
    .detach = detach,
    .look = look,
};
