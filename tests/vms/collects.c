// Behaviour: a machine that collects when it is asked to, beside heaps of others that decline, that say yes and never do, and that
// cannot be asked. It prints its process number, sleeps until a line comes in, and is at work until there are no more lines.
#include "../../c_shim/include/allocsample.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { OBJECTS = 100, SIZE = 1000, BATCH = 16 };

static const allocsample_hooks *agent;
static allocsample_heap *heap;
static allocsample_nursery nursery;
static char objects[OBJECTS][SIZE];
static atomic_bool is_wanted;

static int32_t take_note(void *user)
{
    (void)user;
    is_wanted = true;
    return ALLOCSAMPLE_OK;
}

static int32_t decline(void *user)
{
    (void)user;
    return ALLOCSAMPLE_OFF;
}

static int32_t promise(void *user)
{
    (void)user;
    return ALLOCSAMPLE_OK;
}

static allocsample_heap *registered(const char *name, allocsample_collect collect, size_t size)
{
    return agent->heap_register(&(allocsample_heap_description){
        .size = (uint32_t)size, .kind = ALLOCSAMPLE_TRACED, .name = name, .collect = collect});
}

/* Every other object is garbage. */
static void look_at(uint32_t kind)
{
    allocsample_pending samples[BATCH];
    allocsample_resolution fates[BATCH];
    uint64_t cursor = 0;
    size_t count;
    while ((count = agent->pending(heap, kind == ALLOCSAMPLE_MINOR ? &nursery : NULL, kind, samples, BATCH, &cursor)) > 0) {
        for (size_t at = 0; at < count; at++) {
            size_t number = (samples[at].address - (uintptr_t)objects) / SIZE;
            fates[at] = (allocsample_resolution){.id = samples[at].id, .slot = samples[at].slot,
                                                 .address = samples[at].address,
                                                 .fate = number % 2 == 0 ? ALLOCSAMPLE_DEAD : ALLOCSAMPLE_PROMOTED};
        }
        agent->resolve(heap, kind == ALLOCSAMPLE_MINOR ? &nursery : NULL, kind, fates, count, 1);
    }
}

static void collect(void)
{
    uint64_t begin_ns = agent->now_ns();
    is_wanted = false;
    look_at(ALLOCSAMPLE_MINOR);
    look_at(ALLOCSAMPLE_MAJOR);
    agent->gc(heap, &(allocsample_gc){.size = sizeof(allocsample_gc), .kind = ALLOCSAMPLE_MAJOR, .id = 1,
                                      .begin_ns = begin_ns, .end_ns = agent->now_ns()});
    if (agent->collected(heap, ALLOCSAMPLE_OK) != ALLOCSAMPLE_OK ||
        agent->collected(heap, ALLOCSAMPLE_OK) != ALLOCSAMPLE_INVALID) /* nobody waits any more */
        _exit(99);
}

/* Where the agent looks for requests. */
static void allocate_by_malloc(void)
{
    void *block = malloc(1 << 16);
    __asm__ volatile("" : : "r"(block) : "memory");
    free(block);
}

int main(void)
{
    char line[64];
    agent = allocsample_find();
    if (!ALLOCSAMPLE_CAN(agent, ALLOCSAMPLE_CAN_ASK_TO_COLLECT) || !ALLOCSAMPLE_HAS(agent, collected))
        return 1;
    heap = registered("org.example.collects", take_note, sizeof(allocsample_heap_description));
    registered("org.example.declines", decline, sizeof(allocsample_heap_description));
    registered("org.example.late", promise, sizeof(allocsample_heap_description));
    /* Of an older header. */
    registered("org.example.older", promise, offsetof(allocsample_heap_description, collect));
    agent->nursery_begin(heap, &nursery, 0, 0);
    for (size_t at = 0; at < OBJECTS; at++)
        agent->alloc(heap, &nursery, (uintptr_t)objects[at], SIZE, 0, 0, NULL);
    dprintf(STDOUT_FILENO, "%d\n", (int)getpid());
    if (read(STDIN_FILENO, line, sizeof line) <= 0)
        return 2;
    dprintf(STDOUT_FILENO, "at work\n");
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, 1) == 0) {
        allocate_by_malloc();
        if (is_wanted)
            collect();
    }
    agent->nursery_end(heap, &nursery, 0);
    return 0;
}
