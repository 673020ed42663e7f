// Behaviour: a machine whose objects are known by keys, with one live object of 1 MiB in a heap of 64 MiB that it has touched, beside
// 32 MiB that are not its heap. It says where the heap is, and for a while that the rest is, too. With an argument its profile goes on
// in another file after that.
#define _GNU_SOURCE
#include "../../c_shim/include/allocsample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__LINE__, #condition))
static void check_failed(int line, const char *what)
{
    fprintf(stderr, "ranges: line %d: not so: %s\n", line, what);
    _exit(99);
}

enum { MIB = 1 << 20, KEY = 4096, FIRST = 0, SECOND = 1 };

static uintptr_t touched(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, bytes);
    return (uintptr_t)memory;
}

int main(int count, char **words)
{
    (void)words;
    const allocsample_hooks *agent = allocsample_find();
    if (!ALLOCSAMPLE_HAS(agent, heap_range))
        return 1;
    allocsample_heap *heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_COLLECTED, .name = "org.example.ranges"});
    CHECK(heap != NULL);
    CHECK(agent->sampled_at(heap, KEY, MIB, 0, NULL, 0, 4096) != ALLOCSAMPLE_NO_SAMPLE);
    uintptr_t other = touched(32 * MIB);
    /* The kernel joins neighbours, and then says only how much of both is resident. */
    CHECK(mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
    uintptr_t start = touched(64 * MIB);
    CHECK(agent->heap_range(NULL, FIRST, start, start + MIB) == ALLOCSAMPLE_INVALID);
    CHECK(agent->heap_range(heap, FIRST, start + MIB, start) == ALLOCSAMPLE_INVALID);
    CHECK(agent->heap_range(heap, FIRST, start, start + MIB) == ALLOCSAMPLE_OK);
    CHECK(agent->heap_range(heap, FIRST, start, start + 64 * MIB) == ALLOCSAMPLE_OK);
    CHECK(agent->heap_range(heap, SECOND, other, other + 32 * MIB) == ALLOCSAMPLE_OK);
    CHECK(agent->heap_range(heap, SECOND, other, other) == ALLOCSAMPLE_OK);
    if (count > 1)
        CHECK(agent->process_control(ALLOCSAMPLE_ROTATE, 0) == ALLOCSAMPLE_OK);
    /* A reading of the mappings may have begun while the memory was touched, and the next is due when nothing changes. */
    usleep(500 * 1000);
    return 0;
}
