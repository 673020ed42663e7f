// Behaviour: many heaps with sampling intervals of their own. Of each kind there are as many as the first argument says:
//   steady     4 KiB from the beginning to the end
//   changing   2 KiB, and 32 KiB from its middle on
//   following  that of the process
// Each heap allocates objects of two types, "small" of 64 bytes and "mixed" of 16 bytes to 8 KiB, and frees every second
// one. With a second argument the profile goes on in another file at the end. Prints "heap NAME TYPE OBJECTS BYTES LIVE_BYTES" for each type in each heap. Malloc gives out 4 MiB meanwhile.
#include "../../c_shim/include/allocsample.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__LINE__, #condition))
static void check_failed(int line, const char *what)
{
    fprintf(stderr, "intervals: line %d: not so: %s\n", line, what);
    _Exit(99);
}

enum { KINDS = 3, TYPES = 2, MOST = 84 };
enum { SMALL = 1, MIXED = 2 };

/* There is none: all objects are outside. */
static const uintptr_t NURSERY = 1 << 20;

struct truth {
    uint64_t objects, bytes, live_bytes;
};

struct heap {
    allocsample_heap *handle;
    allocsample_nursery nursery;
    uintptr_t next; /* each object has an address of its own */
    struct truth truths[TYPES];
};

static const allocsample_hooks *agent;
static struct heap heaps[KINDS][MOST];
static const char *const kinds[KINDS] = {"steady", "changing", "following"};
static const uint64_t intervals[KINDS] = {4096, 2048, 0};
static const char *const types[TYPES] = {"small", "mixed"};
static uint64_t random_state = 1;

static uint64_t next_random(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return random_state >> 33;
}

static void allocate(struct heap *heap, allocsample_type type, uint64_t size)
{
    struct truth *truth = &heap->truths[type - 1];
    heap->next += size;
    agent->alloc(heap->handle, &heap->nursery, heap->next, size, type, NURSERY, NULL);
    truth->bytes += size;
    if (truth->objects++ % 2 == 0)
        agent->freed(heap->handle, heap->next);
    else
        truth->live_bytes += size;
}

/* So many bytes of each type. */
static void work(struct heap *heap, uint64_t bytes)
{
    for (uint64_t sum = 0; sum < bytes; sum += 64)
        allocate(heap, SMALL, 64);
    for (uint64_t sum = 0, size; sum < bytes; sum += size) {
        /* Each octave from 16 bytes on as often. */
        size = UINT64_C(16) << next_random() % 9;
        size += next_random() % size;
        allocate(heap, MIXED, size);
    }
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : MOST;
    agent = allocsample_find();
    if (agent == NULL || count > MOST)
        return 1;
    for (int kind = 0; kind < KINDS; kind++)
        for (int at = 0; at < count; at++) {
            struct heap *heap = &heaps[kind][at];
            char name[32];
            snprintf(name, sizeof name, "%s.%d", kinds[kind], at);
            heap->handle =
                agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                                     .kind = ALLOCSAMPLE_EXTERNAL,
                                                                     .name = name,
                                                                     .interval = intervals[kind]});
            CHECK(heap->handle != NULL);
            for (int type = 0; type < TYPES; type++)
                agent->define_type(heap->handle, (allocsample_type)type + 1, types[type], NULL);
            heap->next = (uintptr_t)1 << 32;
            agent->nursery_begin(heap->handle, &heap->nursery, NURSERY, NURSERY);
            work(heap, kind == 2 ? 96 << 10 : 8 << 10);
            void *volatile block = malloc(16 << 10);
            free(block);
            if (kind == 1) {
                CHECK(agent->control(heap->handle, ALLOCSAMPLE_SET_INTERVAL, 32 << 10) == ALLOCSAMPLE_OK);
                work(heap, 32 << 10);
            }
        }
    if (argc > 2)
        CHECK(agent->process_control(ALLOCSAMPLE_ROTATE, 0) == ALLOCSAMPLE_OK);
    for (int kind = 0; kind < KINDS; kind++)
        for (int at = 0; at < count; at++) {
            struct heap *heap = &heaps[kind][at];
            agent->nursery_end(heap->handle, &heap->nursery, NURSERY);
            for (int type = 0; type < TYPES; type++) {
                const struct truth *truth = &heap->truths[type];
                printf("heap %s.%d %s %llu %llu %llu\n", kinds[kind], at, types[type],
                       (unsigned long long)truth->objects, (unsigned long long)truth->bytes,
                       (unsigned long long)truth->live_bytes);
            }
        }
    return 0;
}
