// Behaviour: a machine with a nursery that takes nothing from malloc. Three functions allocate the same, COUNT objects of 64
// bytes each, with a line on standard input before each of the last two; its process number is printed before it is read.
#include "../../c_shim/include/allocsample.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { NURSERY = 1 << 16, SIZE = 64, BATCH = 64 };

static const allocsample_hooks *agent;
static allocsample_heap *heap;
static allocsample_nursery nursery;
static char memory[NURSERY];
static uintptr_t place, limit, top;
static uint64_t collections;

/* Nothing survives. */
static void collect(void)
{
    allocsample_pending samples[BATCH];
    allocsample_resolution fates[BATCH];
    uint64_t cursor = 0;
    size_t count;
    collections++;
    while ((count = agent->pending(heap, &nursery, ALLOCSAMPLE_MINOR, samples, BATCH, &cursor)) > 0) {
        for (size_t at = 0; at < count; at++)
            fates[at] = (allocsample_resolution){
                .id = samples[at].id, .slot = samples[at].slot, .fate = ALLOCSAMPLE_DEAD};
        agent->resolve(heap, &nursery, ALLOCSAMPLE_MINOR, fates, count, collections);
    }
    limit = agent->nursery_sync(heap, &nursery, place, (uintptr_t)memory, top);
    place = (uintptr_t)memory;
}

/* One function each, whose own frame allocates. */
#define SITE(NAME)                                                                                                     \
    __attribute__((noinline)) static void NAME(long count)                                                             \
    {                                                                                                                  \
        for (long i = 0; i < count; i++, place += SIZE) {                                                              \
            if (place + SIZE > top)                                                                                    \
                collect();                                                                                             \
            if (place + SIZE > limit)                                                                                  \
                limit = agent->nursery_point(heap, &nursery, place, SIZE, top, 0);                                     \
        }                                                                                                              \
        /* Keeps the compiler from making one of them. */                                                              \
        __asm__ volatile("# " #NAME);                                                                                  \
    }
SITE(first)
SITE(second)
SITE(third)

static void wait_for_line(void)
{
    char line[64];
    dprintf(STDOUT_FILENO, "%d\n", (int)getpid());
    if (read(STDIN_FILENO, line, sizeof line) <= 0)
        _exit(1);
}

int main(int count, char **words)
{
    agent = allocsample_find();
    if (agent == NULL || count != 2)
        return 1;
    long objects = atol(words[1]);
    heap = agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                                .kind = ALLOCSAMPLE_NURSERY,
                                                                .name = "org.example.rests"});
    place = (uintptr_t)memory;
    top = place + NURSERY;
    limit = agent->nursery_begin(heap, &nursery, place, top);
    first(objects);
    wait_for_line();
    second(objects);
    wait_for_line();
    third(objects);
    agent->nursery_end(heap, &nursery, place);
    return 0;
}
