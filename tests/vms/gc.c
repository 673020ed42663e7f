/* The machine's memory: bump allocation in a nursery, survivors copied to an old space, that copied in turn. */
#define _GNU_SOURCE
#include "vm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("vm: mmap");
        exit(99);
    }
    return memory;
}

struct thread *vm_thread_new(size_t nursery_bytes)
{
    struct thread *t = calloc(1, sizeof *t);
    t->nursery_bytes = nursery_bytes;
    t->nursery = t->free = map(nursery_bytes);
    t->limit = t->top = t->nursery + nursery_bytes;
    t->old_bytes = 16 << 20;
    t->old = t->old_free = map(t->old_bytes);
    t->old_end = t->old + t->old_bytes;
    t->remembered = map(REMEMBERED * sizeof *t->remembered);
    t->stack = map(STACK_VALUES * sizeof *t->stack);
    t->frames = map(FRAMES * sizeof *t->frames);
    hooks_thread_begin(t);
    return t;
}

void vm_thread_end(struct thread *t)
{
    hooks_thread_end(t);
    munmap(t->nursery, t->nursery_bytes);
    munmap(t->old, t->old_bytes);
    munmap(t->remembered, REMEMBERED * sizeof *t->remembered);
    munmap(t->stack, STACK_VALUES * sizeof *t->stack);
    munmap(t->frames, FRAMES * sizeof *t->frames);
    while (t->large != NULL) {
        struct large *next = t->large->next;
        munmap(t->large->object, t->large->object->size);
        free(t->large);
        t->large = next;
    }
    free(t);
}

/* ---- allocation ---- */

/* The fast path: a comparison with the limit. Sampling only ever changes the limit. */
struct object *vm_allocate(struct thread *t, uint64_t size, uint32_t type)
{
    char *object = t->free;
    if (__builtin_expect(size > (uint64_t)(t->limit - object), 0))
        return vm_allocate_slow(t, size, type);
    t->free = object + size;
    return (struct object *)object;
}

static struct object *allocate_large(struct thread *t, uint64_t size)
{
    struct large *large = malloc(sizeof *large);
    *large = (struct large){.next = t->large, .object = map(size), .is_young = true};
    t->large = large;
    t->large_bytes_since_major += size;
    return large->object;
}

struct object *vm_allocate_slow(struct thread *t, uint64_t size, uint32_t type)
{
    if (size > (uint64_t)(t->top - t->free)) {
        vm_collect_minor(t);
        return vm_allocate(t, size, type);
    }
    /* It fits: the limit was a sample point's. */
    char *object = t->free;
    if (!hooks_point(t, size, type)) {
        fprintf(stderr, "vm: the limit is below the top without reason\n");
        exit(99);
    }
    t->free = object + size;
    return (struct object *)object;
}

struct object *vm_new(struct thread *t, enum type type, uint32_t references, uint64_t bytes)
{
    uint64_t size = (sizeof(struct object) + references * sizeof(value) + bytes + 15) & ~(uint64_t)15;
    bool is_large = size > LARGE || type == TYPE_PINNED;
    struct object *object = is_large ? allocate_large(t, size) : vm_allocate(t, size, type);
    memset(object, 0, sizeof *object + references * sizeof(value));
    object->type = type;
    object->references = references;
    object->size = size;
    t->allocated[type] += size;
    t->objects[type]++;
    if (is_large)
        hooks_large(t, object);
    return object;
}

/* ---- references ---- */

static bool is_young(struct thread *t, const void *p)
{
    return (uintptr_t)p - (uintptr_t)t->nursery < t->nursery_bytes;
}

void vm_store(struct thread *t, struct object *holder, size_t at, value v)
{
    references_of(holder)[at] = v;
    /* The card mark: an old object that may point into the nursery. */
    if (is_object(v) && !is_young(t, holder) && !holder->remembered) {
        if (t->remembered_count == REMEMBERED) {
            fprintf(stderr, "vm: too many old objects point into the nursery\n");
            exit(99);
        }
        holder->remembered = 1;
        t->remembered[t->remembered_count++] = holder;
    }
}

/* ---- collections ---- */

/* Copies an object to the old space, once. */
static struct object *copy_old(struct thread *t, struct object *object)
{
    if (object->moved != NULL)
        return object->moved;
    if (object->size > (uint64_t)(t->old_end - t->old_free)) {
        fprintf(stderr, "vm: the old space is full\n");
        exit(99);
    }
    struct object *copy = (struct object *)t->old_free;
    t->old_free += object->size;
    memcpy(copy, object, object->size);
    copy->moved = NULL;
    copy->remembered = 0;
    object->moved = copy;
    return copy;
}

static struct large *large_of(struct thread *t, const void *object)
{
    for (struct large *large = t->large; large != NULL; large = large->next)
        if (large->object == object)
            return large;
    return NULL;
}

static void forward_young(struct thread *t, value *place)
{
    if (!is_object(*place))
        return;
    struct object *object = (struct object *)*place;
    if (is_young(t, object)) {
        if (object->moved == NULL)
            t->survived[object->type] += object->size;
        *place = (value)copy_old(t, object);
    }
}

static void forward_young_of(struct thread *t, struct object *object)
{
    for (uint32_t at = 0; at < object->references; at++)
        forward_young(t, &references_of(object)[at]);
}

void vm_collect_minor(struct thread *t)
{
    uint64_t begin = hooks_now();
    /* Room for the worst case, so that a minor collection never needs a major one inside. */
    if ((size_t)(t->old_end - t->old_free) < t->nursery_bytes || t->large_bytes_since_major > 64 << 20)
        vm_collect_major(t);
    hooks_minor_begin(t);
    char *scan = t->old_free, *first = t->old_free;
    for (size_t at = 0; at < t->sp; at++)
        forward_young(t, &t->stack[at]);
    for (size_t at = 0; at < t->remembered_count; at++) {
        t->remembered[at]->remembered = 0;
        forward_young_of(t, t->remembered[at]);
    }
    t->remembered_count = 0;
    while (scan < t->old_free) {
        struct object *object = (struct object *)scan;
        forward_young_of(t, object);
        scan += object->size;
    }
    /* Large objects live on without a look: only a major collection tells. */
    for (struct large *large = t->large; large != NULL; large = large->next) {
        if (large->is_young)
            t->survived[large->object->type] += large->object->size;
        large->is_young = false;
    }
    char *old_free = t->free;
    t->free = t->nursery;
    t->minor_collections++;
    hooks_minor_end(t, old_free);
    hooks_collected(t, 1, begin, t->minor_collections, (uint64_t)(t->old_free - first));
}

/* One major collection at a time: what follows is its state. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static struct thread *collecting;
static char *from, *from_end;

static bool is_from(const void *p) { return (uintptr_t)p - (uintptr_t)from < (uintptr_t)(from_end - from); }

/* Where an old object is after the major collection; NULL if it is dead. Large objects stay. */
static struct object *now_at(struct object *object)
{
    if (is_from(object))
        return object->moved;
    struct large *large = large_of(collecting, object);
    return large != NULL && (large->object->remembered & 2) ? object : NULL;
}

/* The same of an object that may be another thread's. */
struct object *gc_old_now(struct thread *t, struct object *object, struct object *(*now)(struct object *), int *is_ours)
{
    *is_ours = is_from(object) || large_of(t, object) != NULL;
    return *is_ours ? now(object) : NULL;
}

static void forward_old(struct thread *t, value *place);

static void mark_large(struct thread *t, struct large *large)
{
    if (large->object->remembered & 2)
        return;
    large->object->remembered |= 2;
    for (uint32_t at = 0; at < large->object->references; at++)
        forward_old(t, &references_of(large->object)[at]);
}

static void forward_old(struct thread *t, value *place)
{
    if (!is_object(*place))
        return;
    struct object *object = (struct object *)*place;
    if (is_from(object)) {
        bool was_remembered = object->remembered & 1;
        bool is_first = object->moved == NULL;
        struct object *copy = copy_old(t, object);
        if (is_first && was_remembered)
            copy->remembered = 1;
        *place = (value)copy;
    } else if (!is_young(t, object)) {
        struct large *large = large_of(t, object);
        if (large != NULL)
            mark_large(t, large);
    }
}

void vm_collect_major(struct thread *t)
{
    uint64_t begin = hooks_now();
    pthread_mutex_lock(&one_at_a_time);
    collecting = t;
    from = t->old;
    from_end = t->old_end;
    size_t live_at_most = (size_t)(t->old_free - t->old);
    size_t bytes = live_at_most * 2 + t->nursery_bytes * 2 + (16 << 20);
    t->old = t->old_free = map(bytes);
    t->old_end = t->old + bytes;
    char *scan = t->old;
    for (size_t at = 0; at < t->sp; at++)
        forward_old(t, &t->stack[at]);
    /* The whole nursery counts as alive: only a minor collection knows better. */
    for (char *at = t->nursery; at < t->free; at += ((struct object *)at)->size)
        for (uint32_t i = 0; i < ((struct object *)at)->references; i++)
            forward_old(t, &references_of((struct object *)at)[i]);
    while (scan < t->old_free) {
        struct object *object = (struct object *)scan;
        for (uint32_t at = 0; at < object->references; at++)
            forward_old(t, &references_of(object)[at]);
        scan += object->size;
    }
    size_t kept = 0;
    for (size_t at = 0; at < t->remembered_count; at++) {
        struct object *now = now_at(t->remembered[at]);
        if (now != NULL)
            t->remembered[kept++] = now;
    }
    t->remembered_count = kept;
    hooks_major(t, now_at);
    for (struct large **link = &t->large; *link != NULL;) {
        struct large *large = *link;
        if (large->object->remembered & 2) {
            large->object->remembered &= 1;
            link = &large->next;
        } else {
            *link = large->next;
            munmap(large->object, large->object->size);
            free(large);
        }
    }
    munmap(from, (size_t)(from_end - from));
    t->old_bytes = bytes;
    t->large_bytes_since_major = 0;
    t->major_collections++;
    uint64_t survived = (uint64_t)(t->old_free - t->old);
    pthread_mutex_unlock(&one_at_a_time);
    hooks_collected(t, 2, begin, t->major_collections, survived);
}
