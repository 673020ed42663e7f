// Behaviour: a machine that keeps its frames in a row or in a chain, whole or broken, or has a walker that says too much;
// allocates one object of 64 bytes, at interval 1, and ends well.
// Usage: stacks row | chain | deep | loop | self | unmapped | misaligned | wild | row_beyond | row_odd | walker | inlined
//        stacks thread     switches samples of malloc off and on for one thread
//        stacks busy       uses a processor for half a second with the chain in place
#define _GNU_SOURCE
#include "../../c_shim/include/allocsample.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__LINE__, #condition))
static void check_failed(int line, const char *what)
{
    fprintf(stderr, "stacks: line %d: not so: %s\n", line, what);
    _exit(99);
}

struct frame {
    struct frame *caller;
    allocsample_function function;
    uint32_t line;
};

enum { FRAMES = 2000, NURSERY = 1 << 16 };

static const allocsample_hooks *agent;
static allocsample_heap *heap;
static allocsample_nursery nursery;
static char memory[NURSERY];
static struct frame frames[FRAMES]; /* the oldest first */
static struct frame *volatile top;
static allocsample_shadow_stack shadow = {.size = sizeof shadow,
                                          .top = (const void *const *)&top,
                                          .function_offset = offsetof(struct frame, function),
                                          .line_offset = offsetof(struct frame, line),
                                          .entry_offset = ALLOCSAMPLE_NOWHERE,
                                          .caller_offset = offsetof(struct frame, caller)};
static bool says_too_much;

/* A machine that counts its frames and fills in those that there is room for. */
static size_t walk(void *user, allocsample_frame *to, size_t capacity)
{
    (void)user;
    if (!says_too_much)
        return 0;
    for (size_t at = 0; at < capacity; at++)
        to[at] = (allocsample_frame){.function = 1};
    return SIZE_MAX;
}

__attribute__((noinline)) static void allocate(void)
{
    agent->nursery_point(heap, &nursery, (uintptr_t)memory, 64, (uintptr_t)memory + NURSERY, 1);
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void busy_in_the_machine(void)
{
    struct timespec now;
    static volatile unsigned sink;
    do {
        for (unsigned i = 0; i < 100000; i++)
            sink += i;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while (now.tv_sec == 0 && now.tv_nsec < 500000000);
}

__attribute__((noinline)) static void *allocated_by_a_thread(size_t size)
{
    void *block = malloc(size);
    __asm__ volatile("" : : "r"(block) : "memory");
    return block;
}

int main(int count, char **words)
{
    agent = allocsample_find();
    if (agent == NULL || count < 2)
        return 2;
    const char *story = words[1];
    CHECK(ALLOCSAMPLE_CAN(agent, ALLOCSAMPLE_CAN_SHADOW_STACK) && ALLOCSAMPLE_HAS(agent, shadow_stack));
    if (strcmp(story, "thread") == 0) {
        CHECK(agent->thread_enable(0) == ALLOCSAMPLE_OK);
        allocated_by_a_thread(1000);
        CHECK(agent->thread_enable(1) == ALLOCSAMPLE_OK);
        allocated_by_a_thread(2000);
        return 0;
    }
    heap = agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                                .kind = ALLOCSAMPLE_NURSERY,
                                                                .name = "org.example.stacks",
                                                                .walk = walk});
    agent->define_type(heap, 1, "Object", NULL);
    agent->define_function(heap, 1, "oldest", "program.vm", 1);
    agent->define_function(heap, 2, "middle", "program.vm", 10);
    agent->define_function(heap, 3, "newest", "program.vm", 20);
    CHECK(agent->shadow_stack(heap, &shadow) == ALLOCSAMPLE_INVALID); /* the thread owns no nursery */
    agent->nursery_begin(heap, &nursery, (uintptr_t)memory, (uintptr_t)memory + NURSERY);
    bool is_deep = strcmp(story, "deep") == 0;
    size_t depth = is_deep ? FRAMES : 3;
    for (size_t at = 0; at < depth; at++)
        frames[at] = (struct frame){.caller = at == 0 ? NULL : &frames[at - 1],
                                    .function = at == 0 ? 1 : at + 1 == depth ? 3 : 2,
                                    .line = (uint32_t)at + 1};
    top = &frames[depth - 1];
    if (strncmp(story, "row", 3) == 0) {
        shadow.frame_bytes = sizeof(struct frame);
        shadow.base = frames;
        top = frames + depth;
        if (strcmp(story, "row_beyond") == 0)
            top = (struct frame *)((uintptr_t)frames - 16);
        if (strcmp(story, "row_odd") == 0)
            top = (struct frame *)((char *)top + 4);
    } else if (strcmp(story, "loop") == 0) {
        frames[0].caller = &frames[2];
    } else if (strcmp(story, "self") == 0) {
        frames[1].caller = &frames[1];
    } else if (strcmp(story, "unmapped") == 0) {
        /* The kernel would give away an address that is free. */
        void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(page != MAP_FAILED);
        frames[1].caller = page;
    } else if (strcmp(story, "misaligned") == 0) {
        frames[1].caller = (struct frame *)((char *)&frames[0] + 3);
    } else if (strcmp(story, "wild") == 0) {
        frames[1].caller = (struct frame *)0xdeadbeefdeadbee8;
    } else if (strcmp(story, "inlined") == 0) {
        const allocsample_frame parts[] = {{.function = 3, .line = 21}, {.function = 2, .line = 11}};
        CHECK(agent->define_inlined(heap, 9, parts, 0) == ALLOCSAMPLE_INVALID);
        CHECK(agent->define_inlined(heap, 9, parts, 2) == ALLOCSAMPLE_OK);
        frames[2].function = 9;
        frames[2].caller = &frames[0];
    }
    if (strcmp(story, "walker") == 0)
        says_too_much = true;
    else
        CHECK(agent->shadow_stack(heap, &shadow) == ALLOCSAMPLE_OK);
    if (strcmp(story, "busy") == 0)
        busy_in_the_machine();
    allocate();
    agent->shadow_stack(heap, NULL);
    return 0;
}
