/* Deaths of Mono's objects: each sample has a weak handle, which the collector clears when the object is gone. */
#define _GNU_SOURCE
#include "mono.h"

#include "kit/symbols.h"

enum { YOUNG = 0, OLD = 1 };

static struct {
    uint32_t (*new_handle)(void *object, int32_t even_if_finalized);
    void *(*target)(uint32_t handle);
    void (*free)(uint32_t handle);
    int32_t (*generation)(void *object);
} mono;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct watches watches;

struct watch *mono_watch_take(void)
{
    return watches_take(&watches);
}

uintptr_t mono_watch_key(const struct watch *watch)
{
    return watches_key(&watches, watch);
}

void mono_watch_begin(struct watch *watch, void *object)
{
    /* A finalizer may bring the object back: it is watched until its memory goes. */
    if (watch != NULL)
        watches_begin(watch, mono.new_handle(object, 1));
}

void mono_watch_give_back(struct watch *watch)
{
    watches_give_back(&watches, watch);
}

static void look_at(struct watch *watch, uint32_t generation)
{
    uint32_t handle = (uint32_t)watch->handle;
    void *object = mono.target(handle);
    if (object == NULL) {
        hooks->freed(heap, mono_watch_key(watch));
        mono.free(handle);
        mono_watch_give_back(watch);
    } else if (generation == YOUNG && mono.generation(object) > 0) {
        watches_move(watch, OLD);
    }
}

/* The handles to look at, and whether a thread is doing so; others leave the work to it. */
enum { ASK_YOUNG = 1, ASK_OLD = 2 };
static _Atomic(uint32_t) asked;
static _Atomic(bool) is_looking;

void mono_watch_ask(bool are_old_collected)
{
    atomic_fetch_or_explicit(&asked, are_old_collected ? ASK_YOUNG | ASK_OLD : ASK_YOUNG, memory_order_acq_rel);
}

void mono_watch_tell_dead(void)
{
    while (atomic_load_explicit(&asked, memory_order_acquire) != 0 &&
           !atomic_exchange_explicit(&is_looking, true, memory_order_acquire)) {
        bool is_for_old = (atomic_exchange_explicit(&asked, 0, memory_order_acq_rel) & ASK_OLD) != 0;
        watches_each(&watches, is_for_old ? OLD : YOUNG, look_at);
        atomic_store_explicit(&is_looking, false, memory_order_release);
    }
}

bool mono_watch_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    static const struct symbol symbols[] = {
        {&mono.new_handle, "mono_gchandle_new_weakref"},
        {&mono.target, "mono_gchandle_get_target"},
        {&mono.free, "mono_gchandle_free"},
        {&mono.generation, "mono_gc_get_generation"},
    };
    hooks = the_hooks;
    heap = the_heap;
    return watches_make(&watches) && symbols_find(symbols, sizeof symbols / sizeof symbols[0], NULL);
}

void mono_watch_after_fork_in_child(void)
{
    atomic_store_explicit(&is_looking, false, memory_order_relaxed);
}
