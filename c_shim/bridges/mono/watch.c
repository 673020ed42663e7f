/* Deaths of Mono's objects: each sample has a weak handle, which the collector clears when the object is gone.
 *
 * Nobody waits for anybody here: Mono may have stopped any other thread anywhere. */
#define _GNU_SOURCE
#include "mono.h"

#include "kit/memory.h"
#include "kit/symbols.h"

/* Samples that live at once; beyond, deaths are not noticed. */
#define WATCHES (1u << 20)
/* Keys are multiples of it: each is in a byte of its own of the filter that `freed` asks first. */
#define KEY_STEP 128

/* The object's generation, once there is an object. */
enum { FREE = 0, TAKEN = 1, YOUNG = 2, OLD = 3 };

struct mono_watch {
    _Atomic(uint32_t) state;
    uint32_t handle;
};

static struct {
    uint32_t (*new_handle)(void *object, int32_t even_if_finalized);
    void *(*target)(uint32_t handle);
    void (*free)(uint32_t handle);
    int32_t (*generation)(void *object);
} mono;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct mono_watch *watches;
static _Atomic(uint32_t) used;       /* watches beyond have never been taken */
static _Atomic(uint32_t) first_free; /* a hint: before it, few are free */
static _Atomic(uint64_t) unwatched;

static uint32_t watches_used(void)
{
    uint32_t end = atomic_load_explicit(&used, memory_order_acquire);
    return end < WATCHES ? end : WATCHES;
}

static bool take(uint32_t index)
{
    uint32_t expected = FREE;
    return atomic_compare_exchange_strong_explicit(&watches[index].state, &expected, TAKEN, memory_order_acquire,
                                                   memory_order_relaxed);
}

struct mono_watch *mono_watch_take(void)
{
    uint32_t end = watches_used();
    uint32_t index = atomic_load_explicit(&first_free, memory_order_relaxed);
    for (; index < end; index++)
        if (take(index))
            break;
    if (index >= end) {
        index = atomic_fetch_add_explicit(&used, 1, memory_order_acq_rel);
        if (index >= WATCHES) {
            atomic_fetch_sub_explicit(&used, 1, memory_order_acq_rel);
            return NULL;
        }
        /* Another thread may have taken it. */
        if (!take(index))
            return NULL;
    }
    atomic_store_explicit(&first_free, index + 1, memory_order_relaxed);
    return &watches[index];
}

uintptr_t mono_watch_key(const struct mono_watch *watch)
{
    uint64_t index = watch == NULL ? WATCHES + atomic_fetch_add_explicit(&unwatched, 1, memory_order_relaxed)
                                   : (uint64_t)(watch - watches);
    return (index + 1) * KEY_STEP;
}

void mono_watch_begin(struct mono_watch *watch, void *object)
{
    if (watch == NULL)
        return;
    /* A finalizer may bring the object back: it is watched until its memory goes. */
    watch->handle = mono.new_handle(object, 1);
    atomic_store_explicit(&watch->state, YOUNG, memory_order_release);
}

void mono_watch_give_back(struct mono_watch *watch)
{
    if (watch == NULL)
        return;
    uint32_t index = (uint32_t)(watch - watches);
    atomic_store_explicit(&watch->state, FREE, memory_order_release);
    if (index < atomic_load_explicit(&first_free, memory_order_relaxed))
        atomic_store_explicit(&first_free, index, memory_order_relaxed);
}

static void look_at(struct mono_watch *watch, bool are_old_collected)
{
    uint32_t state = atomic_load_explicit(&watch->state, memory_order_acquire);
    if (state != YOUNG && (state != OLD || !are_old_collected))
        return;
    void *object = mono.target(watch->handle);
    if (object == NULL) {
        hooks->freed(heap, mono_watch_key(watch));
        mono.free(watch->handle);
        mono_watch_give_back(watch);
    } else if (state == YOUNG && mono.generation(object) > 0) {
        atomic_store_explicit(&watch->state, OLD, memory_order_relaxed);
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
        uint32_t end = watches_used();
        for (uint32_t i = 0; i < end; i++)
            look_at(&watches[i], is_for_old);
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
    watches = memory_map(WATCHES * sizeof *watches);
    if (watches == NULL || !symbols_find(symbols, sizeof symbols / sizeof symbols[0], NULL))
        return false;
    hooks = the_hooks;
    heap = the_heap;
    return true;
}

void mono_watch_after_fork_in_child(void)
{
    atomic_store_explicit(&is_looking, false, memory_order_relaxed);
}
