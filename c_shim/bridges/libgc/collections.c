/* libgc's collections, by the callback that it has for events. The program may have one of its own, which ours calls.
 *
 * Ours is set by a thread that allocates: libgc is initialised then. After a detach it is given back only for a callback of the
 * program's. libgc calls it after a test against NULL, and in a process with one thread it takes no lock of its own, so that NULL
 * may not be put there from another thread: ours stays then, and does nothing. */
#define _GNU_SOURCE
#include "libgc.h"

#include "kit/lock.h"

/* GC_EventType */
enum { EVENT_START = 0, EVENT_END = 5 };

enum { STATISTIC_HEAP = 1 };

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct libgc_events libgc;

/* Guards which callback is libgc's and which is the program's. libgc's own lock may be taken under it, never the other way round. */
static bridge_lock lock;
static bool may_watch;
static _Atomic(bool) is_watching;
static _Atomic(libgc_on_event) users_callback;

/* With libgc's lock held. */
static uint64_t gc_begin_ns, gc_count;
static bool is_in_callback;

static void note(int event)
{
    if (event == EVENT_START)
        gc_begin_ns = hooks->now_ns();
    if (event != EVENT_END || gc_begin_ns == 0)
        return;
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
    gc_begin_ns = 0;
}

/* A callback that the program has set after a detach may call this one, which it then took for the one before. */
static void on_collection_event(int event)
{
    if (is_in_callback)
        return;
    is_in_callback = true;
    libgc_on_event users = atomic_load_explicit(&users_callback, memory_order_acquire);
    if (atomic_load_explicit(&is_watching, memory_order_acquire))
        note(event);
    if (users != NULL)
        users(event);
    is_in_callback = false;
}

bool libgc_is_watched(void)
{
    return atomic_load_explicit(&is_watching, memory_order_relaxed);
}

void libgc_watch(void)
{
    lock_take(&lock);
    if (may_watch && !libgc_is_watched()) {
        libgc_on_event present = libgc.get_callback();
        if (present != on_collection_event) {
            atomic_store_explicit(&users_callback, present, memory_order_release);
            libgc.set_callback(on_collection_event);
        }
        atomic_store_explicit(&is_watching, true, memory_order_release);
    }
    lock_release(&lock);
}

void libgc_set_users_callback(libgc_on_event callback)
{
    lock_take(&lock);
    if (libgc_is_watched())
        atomic_store_explicit(&users_callback, callback, memory_order_release);
    else
        libgc.set_callback(callback);
    lock_release(&lock);
}

libgc_on_event libgc_users_callback(void)
{
    lock_take(&lock);
    libgc_on_event callback =
        libgc_is_watched() ? atomic_load_explicit(&users_callback, memory_order_relaxed) : libgc.get_callback();
    lock_release(&lock);
    return callback;
}

void libgc_collections_begin(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, const struct libgc_events *events)
{
    lock_take(&lock);
    hooks = the_hooks;
    heap = the_heap;
    libgc = *events;
    may_watch = true;
    lock_release(&lock);
    hooks->define_statistic(heap, STATISTIC_HEAP, "heap", "bytes");
}

void libgc_tell_heap(void)
{
    hooks->value(heap, STATISTIC_HEAP, libgc.heap_size());
}

void libgc_collections_end(void)
{
    lock_take(&lock);
    may_watch = false;
    if (libgc_is_watched()) {
        libgc_on_event users = atomic_load_explicit(&users_callback, memory_order_relaxed);
        atomic_store_explicit(&is_watching, false, memory_order_release);
        if (users != NULL && libgc.get_callback() == on_collection_event)
            libgc.set_callback(users);
    }
    lock_release(&lock);
}

void libgc_collections_after_fork_in_child(void)
{
    lock_release(&lock);
}
