#include "kit/countdown_threads.h"

/* Threads at a time, of all heaps. Blocks of others are not sampled, and not counted either. */
#define PLACES 4096

static struct place {
    _Atomic(bool) taken;
    const struct countdown_threads *threads;
    struct countdown *countdown;
    allocsample_nursery nursery;
} places[PLACES];

/* The thread ends; its thread-local variables are still there. */
static void leave(void *place_of_thread)
{
    struct place *place = place_of_thread;
    place->threads->hooks->nursery_end(place->threads->heap, &place->nursery, countdown_free(place->countdown));
    *place->countdown = (struct countdown){0};
    atomic_store_explicit(&place->taken, false, memory_order_release);
}

bool countdown_threads_prepare(struct countdown_threads *threads, const allocsample_hooks *hooks, allocsample_heap *heap)
{
    threads->hooks = hooks;
    threads->heap = heap;
    return pthread_key_create(&threads->key, leave) == 0;
}

static struct place *take_place(void)
{
    for (struct place *place = places; place < places + PLACES; place++) {
        bool taken = atomic_load_explicit(&place->taken, memory_order_relaxed);
        if (!taken && atomic_compare_exchange_strong_explicit(&place->taken, &taken, true, memory_order_acquire,
                                                              memory_order_relaxed))
            return place;
    }
    return NULL;
}

void countdown_join(const struct countdown_threads *threads, struct countdown *countdown)
{
    struct place *place = take_place();
    if (place != NULL) {
        place->threads = threads;
        place->countdown = countdown;
        pthread_setspecific(threads->key, place);
    }
    countdown_begin(countdown, threads->hooks, threads->heap, place == NULL ? NULL : &place->nursery);
}
