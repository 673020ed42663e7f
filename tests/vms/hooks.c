/* The machine's side of the hook ABI: all of it. What an author adds to a machine of their own looks like this. */
#include "vm.h"

#ifdef WITHOUT_ALLOCSAMPLE

void hooks_start(void) {}
void hooks_thread_begin(struct thread *t) { (void)t; }
void hooks_thread_end(struct thread *t) { (void)t; }
bool hooks_point(struct thread *t, uint64_t size, uint32_t type) { return (void)t, (void)size, (void)type, false; }
void hooks_large(struct thread *t, struct object *o) { (void)t, (void)o; }
void hooks_minor_begin(struct thread *t) { (void)t; }
void hooks_minor_end(struct thread *t, char *old_free) { (void)t, (void)old_free; }
void hooks_major(struct thread *t, struct object *(*now)(struct object *)) { (void)t, (void)now; }
void hooks_collected(struct thread *t, int kind, uint64_t begin, uint64_t id, uint64_t bytes)
{
    (void)t, (void)kind, (void)begin, (void)id, (void)bytes;
}
uint64_t hooks_now(void) { return 0; }
void hooks_toggle(struct thread *t, bool on) { (void)t, (void)on; }
void hooks_control(unsigned random) { (void)random; }

#else

static const allocsample_hooks *agent;
static allocsample_heap *heap;
static __thread struct thread *running;

enum { SURVIVED_BYTES = 1, OLD_SPACE = 2 };

/* The frames of the thread that allocates, leaf first. */
static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    size_t count = 0;
    for (size_t at = running->depth; at > 0 && count < capacity; at--, count++)
        frames[count] = (allocsample_frame){.function = running->frames[at - 1].function + 1,
                                            .line = running->frames[at - 1].line,
                                            .flags = running->frames[at - 1].is_entry ? ALLOCSAMPLE_ENTRY : 0};
    return count;
}

void hooks_start(void)
{
    static const char *const types[TYPES] = {[TYPE_NODE] = "Node", [TYPE_STRING] = "String", [TYPE_ARRAY] = "Array",
                                             [TYPE_BLOB] = "Blob", [TYPE_PINNED] = "Pinned"};
    agent = allocsample_find();
    if (agent == NULL)
        return;
    heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_NURSERY, .name = "org.example.vm", .walk = walk});
    if (heap == NULL) {
        agent = NULL;
        return;
    }
    agent->interpreter_range(heap, (uintptr_t)__start_vm_loop, (uintptr_t)__stop_vm_loop);
    for (uint32_t type = 1; type < TYPES; type++)
        agent->define_type(heap, type, types[type], NULL);
    for (uint32_t at = 0; vm_functions[at] != NULL; at++)
        agent->define_function(heap, at + 1, vm_functions[at], "program.vm", 1);
    agent->define_statistic(heap, SURVIVED_BYTES, "survived", "bytes");
    agent->define_statistic(heap, OLD_SPACE, "old space", "bytes");
}

void hooks_thread_begin(struct thread *t)
{
    running = t;
    if (agent != NULL)
        t->limit = (char *)agent->nursery_begin(heap, &t->agent, (uintptr_t)t->free, (uintptr_t)t->top);
}

void hooks_thread_end(struct thread *t)
{
    if (agent != NULL)
        agent->nursery_end(heap, &t->agent, (uintptr_t)t->free);
}

bool hooks_point(struct thread *t, uint64_t size, uint32_t type)
{
    if (agent == NULL)
        return false;
    t->limit = (char *)agent->nursery_point(heap, &t->agent, (uintptr_t)t->free, size, (uintptr_t)t->top, type);
    return true;
}

void hooks_large(struct thread *t, struct object *object)
{
    if (agent == NULL)
        return;
    uintptr_t limit = (uintptr_t)t->limit;
    agent->alloc(heap, &t->agent, (uintptr_t)object, object->size, object->type, (uintptr_t)t->free, &limit);
    t->limit = (char *)limit;
}

void hooks_minor_begin(struct thread *t) { (void)t; }

/* The survivors are copied, the nursery is still there: who was not moved is dead. */
void hooks_minor_end(struct thread *t, char *old_free)
{
    if (agent == NULL)
        return;
    enum { BATCH = 64 };
    allocsample_pending pending[BATCH];
    allocsample_resolution resolutions[BATCH];
    uint64_t cursor = 0;
    size_t count;
    while ((count = agent->pending(heap, &t->agent, ALLOCSAMPLE_MINOR, pending, BATCH, &cursor)) > 0) {
        for (size_t at = 0; at < count; at++) {
            struct object *object = (struct object *)pending[at].address;
            bool is_in_nursery = pending[at].address - (uintptr_t)t->nursery < t->nursery_bytes;
            struct object *now = is_in_nursery ? object->moved : object;
            resolutions[at] = (allocsample_resolution){.id = pending[at].id,
                                                       .slot = pending[at].slot,
                                                       .address = (uintptr_t)now,
                                                       .fate = now != NULL ? ALLOCSAMPLE_PROMOTED : ALLOCSAMPLE_DEAD};
        }
        agent->resolve(heap, &t->agent, ALLOCSAMPLE_MINOR, resolutions, count, t->minor_collections);
    }
    t->limit = (char *)agent->nursery_sync(heap, &t->agent, (uintptr_t)old_free, (uintptr_t)t->free, (uintptr_t)t->top);
}

/* Resolves what a major collection has decided upon, of one list of samples. */
static void resolve_major(struct thread *t, allocsample_nursery *nursery, uint32_t list,
                          struct object *(*now)(struct object *))
{
    enum { BATCH = 64 };
    allocsample_pending pending[BATCH];
    allocsample_resolution resolutions[BATCH];
    uint64_t cursor = 0;
    size_t count;
    while ((count = agent->pending(heap, nursery, list, pending, BATCH, &cursor)) > 0) {
        size_t answers = 0;
        for (size_t at = 0; at < count; at++) {
            int is_ours;
            struct object *object = (struct object *)pending[at].address;
            struct object *moved = gc_old_now(t, object, now, &is_ours);
            /* Young ones that live are the next minor collection's. */
            if (is_ours && (moved == NULL || list == ALLOCSAMPLE_MAJOR))
                resolutions[answers++] =
                    (allocsample_resolution){.id = pending[at].id,
                                             .slot = pending[at].slot,
                                             .address = (uintptr_t)moved,
                                             .fate = moved != NULL ? ALLOCSAMPLE_ALIVE : ALLOCSAMPLE_DEAD};
        }
        agent->resolve(heap, nursery, list, resolutions, answers, t->major_collections + 1);
    }
}

/* Old samples are those of all threads; each thread's collector knows its own objects only. Large objects may die before
 * any minor collection has looked at them. */
void hooks_major(struct thread *t, struct object *(*now)(struct object *))
{
    if (agent == NULL)
        return;
    resolve_major(t, NULL, ALLOCSAMPLE_MAJOR, now);
    resolve_major(t, &t->agent, ALLOCSAMPLE_MINOR, now);
}

void hooks_collected(struct thread *t, int kind, uint64_t begin, uint64_t id, uint64_t bytes)
{
    if (agent == NULL)
        return;
    agent->value(heap, OLD_SPACE, (uint64_t)(t->old_free - t->old));
    const uint64_t statistics[] = {SURVIVED_BYTES, bytes};
    agent->gc(heap, &(allocsample_gc){.size = sizeof(allocsample_gc),
                                      .kind = (uint32_t)kind,
                                      .id = id,
                                      .begin_ns = begin,
                                      .end_ns = agent->now_ns(),
                                      .statistics = 1,
                                      .values = statistics});
}

uint64_t hooks_now(void) { return agent == NULL ? 0 : agent->now_ns(); }

void hooks_toggle(struct thread *t, bool on)
{
    if (agent != NULL)
        t->limit = (char *)agent->nursery_enable(heap, &t->agent, (uintptr_t)t->free, (uintptr_t)t->top, on);
}

void hooks_control(unsigned random)
{
    if (agent == NULL)
        return;
    switch (random % 4) {
    case 0: agent->control(heap, ALLOCSAMPLE_STOP, 0); break;
    case 1: agent->control(heap, ALLOCSAMPLE_SET_INTERVAL, UINT64_C(4096) << random / 4 % 4); break;
    default: agent->control(heap, ALLOCSAMPLE_START, 0); break;
    }
}

#endif
