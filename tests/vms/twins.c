// Behaviour: a machine that hashes what its objects hold: 900 texts of 9 contents, 100 of a content each, and 50 numbers with
// the contents of texts. One collection finds all of them alive, but for 10 texts, which die without a hash.
#include "../../c_shim/include/allocsample.h"

#include <stdio.h>

enum { TEXT = 1, NUMBER = 2, TEXTS = 1010, NUMBERS = 50, OBJECT = 32, BATCH = 64 };

static const allocsample_hooks *agent;
static allocsample_heap *heap;
static allocsample_nursery nursery;
static struct object {
    uint64_t content, padding[3];
} memory[TEXTS + NUMBERS];

/* What an object holds; 0 for one that is dead by then. */
static uint64_t content_of(unsigned at)
{
    if (at < 900)
        return 1 + at % 9;
    return at < 1000 ? at : at < TEXTS ? 0 : 1 + at % 9;
}

__attribute__((noinline)) static void make(unsigned at, uintptr_t top)
{
    uintptr_t address = (uintptr_t)&memory[at];
    memory[at].content = content_of(at);
    agent->nursery_point(heap, &nursery, address, OBJECT, top, at < TEXTS ? TEXT : NUMBER);
}

int main(void)
{
    agent = allocsample_find();
    if (agent == NULL)
        return 0;
    heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_NURSERY, .name = "org.example.twins"});
    agent->define_type(heap, TEXT, "Text", NULL);
    agent->define_type(heap, NUMBER, "Number", NULL);
    const uintptr_t first = (uintptr_t)memory, top = first + sizeof memory;
    agent->nursery_begin(heap, &nursery, first, top);
    for (unsigned at = 0; at < TEXTS + NUMBERS; at++)
        make(at, top);
    allocsample_pending samples[BATCH];
    allocsample_resolution answers[BATCH];
    uint64_t cursor = 0, hashed = 0;
    size_t count;
    while ((count = agent->pending(heap, &nursery, ALLOCSAMPLE_MINOR, samples, BATCH, &cursor)) > 0) {
        for (size_t at = 0; at < count; at++) {
            uint64_t content = ((struct object *)samples[at].address)->content;
            hashed += content != 0;
            answers[at] = (allocsample_resolution){.id = samples[at].id,
                                                   .slot = samples[at].slot,
                                                   .address = samples[at].address,
                                                   .content_hash = content * UINT64_C(0x9E3779B97F4A7C15),
                                                   .fate = content != 0 ? ALLOCSAMPLE_PROMOTED : ALLOCSAMPLE_DEAD};
        }
        agent->resolve(heap, &nursery, ALLOCSAMPLE_MINOR, answers, count, 1);
    }
    agent->nursery_end(heap, &nursery, top);
    printf("%llu\n", (unsigned long long)hashed);
    return 0;
}
