// Behaviour: a bump allocator that docs/hook-abi.md is followed on, step by step: STEP=0 is the machine as it was, each
// further step is one of the guide's, and works without those behind it. Prints what it allocated and collected.
// Usage: guide OBJECTS
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if STEP >= 1
#include "../../c_shim/include/allocsample.h"
#endif

enum { NURSERY_BYTES = 64 << 10, KEPT = 16, TYPE_NODE = 1, SURVIVED = 1 };

struct object {
    struct object *moved; /* during a collection */
    uint64_t size, number;
};

struct thread {
    char *free, *limit, *top, *nursery;
    struct object *roots[KEPT];
#if STEP >= 2
    allocsample_nursery agent;
#endif
};

static uint64_t allocated, survived, collections;

/* ---- step 1 ---- */
#if STEP >= 1
static const allocsample_hooks *agent; /* NULL: nobody profiles us */
static allocsample_heap *heap;

#if STEP >= 6
struct frame {
    uint32_t number, line, is_entry;
    struct frame *caller;
};
static struct frame outer = {.number = 1, .line = 10, .is_entry = 1};
static struct frame inner = {.number = 2, .line = 20, .caller = &outer};

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    size_t count = 0;
    for (struct frame *f = &inner; f != NULL && count < capacity; f = f->caller, count++)
        frames[count] = (allocsample_frame){
            .function = f->number, .line = f->line, .flags = f->is_entry ? ALLOCSAMPLE_ENTRY : 0};
    return count;
}
#endif

static void vm_start(void)
{
    agent = allocsample_find();
    if (agent == NULL)
        return;
    heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description),
        .kind = ALLOCSAMPLE_NURSERY,
        .name = "org.example.guide",
#if STEP >= 6
        .walk = walk,
#endif
    });
    if (heap == NULL)
        agent = NULL;
#if STEP >= 3
    if (agent != NULL)
        agent->define_type(heap, TYPE_NODE, "Node", NULL);
#endif
#if STEP >= 5
    if (agent != NULL)
        agent->define_statistic(heap, SURVIVED, "survived", "bytes");
#endif
#if STEP >= 6
    if (agent != NULL) {
        agent->define_function(heap, 1, "outer", "program.vm", 1);
        agent->define_function(heap, 2, "inner", "program.vm", 15);
    }
#endif
}
#endif

/* ---- the machine ---- */

/* Survivors are copied, and everything else is forgotten. */
static void collect(struct thread *t)
{
#if STEP >= 5
    uint64_t begin = agent != NULL ? agent->now_ns() : 0;
#endif
    uint64_t bytes = 0;
    for (int at = 0; at < KEPT; at++) {
        struct object *object = t->roots[at];
        if (object == NULL || (uintptr_t)object - (uintptr_t)t->nursery >= NURSERY_BYTES)
            continue;
        t->roots[at] = object->moved = malloc(object->size);
        memcpy(object->moved, object, object->size);
        bytes += object->size;
    }
    char *old_free = t->free;
    t->free = t->nursery;
    survived += bytes;
    collections++;
#if STEP >= 4
    allocsample_pending pending[64];
    allocsample_resolution fates[64];
    uint64_t cursor = 0;
    size_t count;
    while (agent != NULL && (count = agent->pending(heap, &t->agent, ALLOCSAMPLE_MINOR, pending, 64, &cursor)) > 0) {
        for (size_t at = 0; at < count; at++) {
            struct object *now = ((struct object *)pending[at].address)->moved; /* NULL: dead */
            fates[at] = (allocsample_resolution){
                .id = pending[at].id,
                .slot = pending[at].slot,
                .address = (uintptr_t)now,
                .fate = now != NULL ? ALLOCSAMPLE_PROMOTED : ALLOCSAMPLE_DEAD,
            };
        }
        agent->resolve(heap, &t->agent, ALLOCSAMPLE_MINOR, fates, count, collections);
    }
#endif
#if STEP >= 2
    if (agent != NULL)
        t->limit = (char *)agent->nursery_sync(heap, &t->agent, (uintptr_t)old_free, (uintptr_t)t->free, (uintptr_t)t->top);
#endif
#if STEP >= 5
    if (agent != NULL) {
        const uint64_t values[] = {SURVIVED, bytes};
        agent->gc(heap, &(allocsample_gc){
            .size = sizeof(allocsample_gc), .kind = ALLOCSAMPLE_MINOR, .id = collections,
            .begin_ns = begin, .end_ns = agent->now_ns(), .statistics = 1, .values = values});
    }
#endif
    (void)old_free;
}

static void *allocate(struct thread *t, size_t size);

__attribute__((noinline)) static void *allocate_slow(struct thread *t, size_t size)
{
#if STEP >= 2
    if (size <= (size_t)(t->top - t->free)) {
        char *object = t->free;
        uint32_t type = STEP >= 3 ? TYPE_NODE : 0;
        t->limit = (char *)agent->nursery_point(heap, &t->agent, (uintptr_t)object, size, (uintptr_t)t->top, type);
        t->free = object + size;
        return object;
    }
#endif
    collect(t);
    return allocate(t, size);
}

static void *allocate(struct thread *t, size_t size)
{
    char *object = t->free;
    if (size > (size_t)(t->limit - object))
        return allocate_slow(t, size);
    t->free = object + size;
    return object;
}

int main(int count, char **words)
{
    uint64_t objects = count > 1 ? strtoull(words[1], NULL, 10) : 1000;
    static struct thread t;
    t.free = t.nursery = malloc(NURSERY_BYTES);
    t.limit = t.top = t.nursery + NURSERY_BYTES;
#if STEP >= 1
    vm_start();
#endif
#if STEP >= 2
    if (agent != NULL)
        t.limit = (char *)agent->nursery_begin(heap, &t.agent, (uintptr_t)t.free, (uintptr_t)t.top);
#endif
    for (uint64_t number = 0; number < objects; number++) {
        uint64_t size = 32 + number % 7 * 16;
        struct object *object = allocate(&t, size);
        *object = (struct object){.size = size, .number = number};
        allocated += size;
        if (number % 10 == 0) {
            struct object **root = &t.roots[number / 10 % KEPT];
            if (*root != NULL && (uintptr_t)*root - (uintptr_t)t.nursery >= NURSERY_BYTES)
                free(*root);
            *root = object;
        }
    }
    collect(&t);
#if STEP >= 2
    if (agent != NULL)
        agent->nursery_end(heap, &t.agent, (uintptr_t)t.free);
#endif
    printf("allocated %llu survived %llu collections %llu\n", (unsigned long long)allocated,
           (unsigned long long)survived, (unsigned long long)collections);
    return 0;
}
