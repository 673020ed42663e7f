/* See allocator.h. */
#define _GNU_SOURCE
#include "kit/allocator.h"

#include "kit/lock.h"
#include "kit/memory.h"
#include "kit/resume.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Threads at a time. Blocks of others are not sampled, and not counted either. */
#define THREADS 4096

static const allocsample_hooks *hooks;
static pthread_key_t key;
static bool has_key;
static struct allocator_thread *threads;
static _Atomic(size_t) threads_used; /* those beyond were never taken */
static allocsample_heap *registered[ALLOCATORS];
/* Those that bridges have taken. */
static _Atomic(const char *) whats[ALLOCATORS];
static _Atomic(uintptr_t) keys[ALLOCATORS]; /* 0: none */
static bridge_lock registering;
static _Atomic(size_t) numbers_taken;

static _Thread_local struct allocator_thread *allocator_thread __attribute__((tls_model("initial-exec")));
_Thread_local uint64_t allocator_left[ALLOCATORS] __attribute__((tls_model("initial-exec")));

/* ---- threads ---- */

/* The thread ends; its thread-local variables are still there. */
static void leave(void *argument)
{
    struct allocator_thread *thread = argument;
    allocator_thread = NULL;
    for (size_t i = 0; i < ALLOCATORS; i++) {
        struct countdown *countdown = &thread->countdowns[i];
        if (!thread->is_passing[i])
            countdown->left = allocator_left[i];
        thread->is_passing[i] = false;
        allocator_left[i] = 0;
        if (countdown->limit != 0)
            hooks->nursery_end(registered[i], &thread->nurseries[i], countdown_free(countdown));
        *countdown = (struct countdown){0};
    }
    atomic_store_explicit(&thread->taken, false, memory_order_release);
}

COLD static struct allocator_thread *join_thread(void)
{
    for (struct allocator_thread *thread = threads; thread < threads + THREADS; thread++) {
        bool taken = atomic_load_explicit(&thread->taken, memory_order_relaxed);
        if (taken || !atomic_compare_exchange_strong_explicit(&thread->taken, &taken, true, memory_order_acquire,
                                                              memory_order_relaxed))
            continue;
        if (pthread_setspecific(key, thread) != 0) {
            atomic_store_explicit(&thread->taken, false, memory_order_release);
            return NULL;
        }
        size_t used = (size_t)(thread - threads) + 1;
        size_t before = atomic_load_explicit(&threads_used, memory_order_relaxed);
        while (before < used && !atomic_compare_exchange_weak_explicit(&threads_used, &before, used,
                                                                       memory_order_relaxed, memory_order_relaxed))
            ;
        allocator_thread = thread;
        return thread;
    }
    return NULL;
}

void allocators_after_fork_in_child(void)
{
    lock_release(&registering);
    size_t used = atomic_load_explicit(&threads_used, memory_order_relaxed);
    for (struct allocator_thread *thread = threads; thread < threads + used; thread++)
        if (thread != allocator_thread && atomic_load_explicit(&thread->taken, memory_order_relaxed))
            memset(thread, 0, sizeof *thread);
}

/* ---- blocks ---- */

COLD void allocator_count(struct allocator *allocator, allocsample_heap *heap, void *block, size_t size)
{
    int saved_errno = errno;
    struct allocator_thread *thread = allocator_thread != NULL ? allocator_thread : join_thread();
    if (thread != NULL) {
        struct countdown *countdown = &thread->countdowns[allocator->number];
        uint64_t *left = &allocator_left[allocator->number];
        if (thread->is_passing[allocator->number]) {
            thread->is_passing[allocator->number] = false;
            *left = countdown->left;
        }
        countdown->left = *left;
        if (countdown->limit == 0)
            countdown_begin(countdown, hooks, heap, &thread->nurseries[allocator->number]);
        if (!countdown_take(countdown, size))
            countdown_tell(countdown, hooks, heap, (uintptr_t)block, size, 0);
        *left = countdown->left;
    }
    errno = saved_errno;
}

COLD void allocator_pass(struct allocator *allocator)
{
    uint64_t *left = &allocator_left[allocator->number];
    struct allocator_thread *thread = allocator_thread;
    if (thread != NULL && !thread->is_passing[allocator->number]) {
        thread->is_passing[allocator->number] = true;
        thread->countdowns[allocator->number].left = *left;
    }
    *left = COUNTDOWN_LOOK;
}

COLD void allocator_tell_freed(allocsample_heap *heap, void *block)
{
    hooks->freed(heap, (uintptr_t)block);
}

/* ---- heaps ---- */

static bool prepare(const allocsample_hooks *agents)
{
    hooks = agents;
    if (threads == NULL)
        threads = memory_map(THREADS * sizeof *threads);
    if (!has_key)
        has_key = pthread_key_create(&key, leave) == 0;
    return hooks != NULL && threads != NULL && has_key;
}

bool allocator_take_number(struct allocator *allocator)
{
    size_t number = atomic_load(&numbers_taken);
    do
        if (number == ALLOCATORS)
            return false;
    while (!atomic_compare_exchange_weak(&numbers_taken, &number, number + 1));
    allocator->number = number;
    allocator->is_numbered = true;
    atomic_store(&whats[number], allocator->what);
    atomic_store(&keys[number], allocator->key);
    return true;
}

/* Only the last one can be taken again. */
void allocator_return_number(struct allocator *allocator, bool has_counted)
{
    size_t taken = allocator->number + 1;
    atomic_store(&keys[allocator->number], 0);
    if (!has_counted)
        atomic_compare_exchange_strong(&numbers_taken, &taken, allocator->number);
    allocator->is_numbered = false;
}

bool allocator_register(struct allocator *allocator, const allocsample_hooks *agents, const char *file)
{
    char name[256];
    if (!lock_try_longer(&registering))
        return false;
    bool is_prepared = prepare(agents);
    lock_release(&registering);
    if (!is_prepared || (!allocator->is_numbered && !allocator_take_number(allocator)))
        return false;
    snprintf(name, sizeof name, "%s in %s", allocator->what, file);
    allocsample_heap_description description = {
        .size = sizeof description, .kind = ALLOCSAMPLE_ALLOCATOR, .name = name};
    allocator->registered = hooks->heap_register(&description);
    if (allocator->registered == NULL)
        return false;
    registered[allocator->number] = allocator->registered;
    return true;
}

bool allocator_is_taken(const char *what, uintptr_t start, uintptr_t end)
{
    for (size_t i = 0; i < ALLOCATORS; i++) {
        uintptr_t key = atomic_load(&keys[i]);
        if (key >= start && key < end && strcmp(atomic_load(&whats[i]), what) == 0)
            return true;
    }
    return false;
}

void allocator_start(struct allocator *allocator)
{
    /* Release: a thread that reads the heap also sees everything written before. */
    atomic_store_explicit(&allocator->heap, allocator->registered, memory_order_release);
}

void allocator_resume(struct allocator *allocator)
{
    resume_heap(hooks, allocator->registered);
    allocator_start(allocator);
}

void allocator_stop(struct allocator *allocator)
{
    atomic_store_explicit(&allocator->heap, NULL, memory_order_relaxed);
}

void allocator_unregister(struct allocator *allocator)
{
    allocator_stop(allocator);
    if (allocator->registered == NULL)
        return;
    atomic_store(&keys[allocator->number], 0);
    hooks->heap_unregister(allocator->registered);
}
