// Behaviour: a machine that wants to hear when its heap is sampled and how; checks that it does, until it takes the heap
// back; and that nothing of it is called any more then, also by a nursery that it has not ended.
#include "../../c_shim/include/allocsample.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__LINE__, #condition))
static void check_failed(int line, const char *what)
{
    fprintf(stderr, "changes: line %d: not so: %s\n", line, what);
    _exit(99);
}

enum { SIZE = 1000 };

static const allocsample_hooks *agent;
static char object[SIZE];

struct listener {
    allocsample_heap *heap;
    unsigned calls;
};

static void on_change(void *user)
{
    struct listener *listener = user;
    listener->calls++;
}

static allocsample_heap *registered(const char *name, uint32_t size, struct listener *listener)
{
    return agent->heap_register(&(allocsample_heap_description){
        .size = size, .kind = ALLOCSAMPLE_EXTERNAL, .name = name, .user = listener, .on_change = on_change});
}

/* It was called since the last time, and this holds now. */
static void heard(struct listener *listener, uint32_t is_on, uint64_t interval)
{
    static unsigned before;
    allocsample_counters now = {.size = sizeof now};
    CHECK(listener->calls > before);
    before = listener->calls;
    CHECK(agent->counters(listener->heap, &now) == ALLOCSAMPLE_OK);
    CHECK(now.is_on == is_on && (interval == 0 || now.interval == interval));
}

static allocsample_id allocate(allocsample_heap *heap, allocsample_nursery *state)
{
    return agent->alloc(heap, state, (uintptr_t)object, SIZE, 0, 0, NULL);
}

/* A machine in a plugin, which may be unloaded when it has taken its heap back. */
static volatile unsigned walks, samples; /* volatile: compilers take malloc and free for functions that change nothing */

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user, (void)frames, (void)capacity;
    walks++;
    return 0;
}

static void on_sample(void *user, allocsample_id sample, uintptr_t address, uint64_t size, allocsample_type type)
{
    (void)user, (void)sample, (void)address, (void)size, (void)type;
    samples++;
}

static void allocate_by_malloc(void)
{
    void *block = malloc(100);
    __asm__ volatile("" : : "r"(block) : "memory");
    free(block);
}

/* A walker is asked inside free only if it may be. */
static void frees_are_walked_on_request(void)
{
    enum { BLOCKS = 200 };
    static const uint32_t flags[] = {ALLOCSAMPLE_WALK_EVERYWHERE, ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WALK_IN_FREE};
    for (unsigned i = 0; i < 2; i++) {
        allocsample_heap *heap = agent->heap_register(&(allocsample_heap_description){
            .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_EXTERNAL, .name = "org.example.frees",
            .flags = flags[i], .walk = walk});
        CHECK(heap != NULL);
        static void *volatile blocks[BLOCKS];
        walks = 0;
        for (unsigned j = 0; j < BLOCKS; j++)
            blocks[j] = malloc(100);
        CHECK(walks == BLOCKS);
        for (unsigned j = 0; j < BLOCKS; j++)
            free(blocks[j]);
        /* The stack of one free in eight is taken. */
        CHECK((walks > BLOCKS) == (i == 1) && walks < BLOCKS + BLOCKS / 2);
        CHECK(agent->heap_unregister(heap) == ALLOCSAMPLE_OK);
    }
}

/* A machine that draws its samples itself follows if it tells under which interval each was drawn, else its heap stays as it
 * was. What the profile makes of these is in tests/hooks/process_control.rs. */
static void drawn_samples_have_their_intervals(void)
{
    struct listener follows = {0}, stays = {0};
    follows.heap = registered("org.example.follows", sizeof(allocsample_heap_description), &follows);
    stays.heap = registered("org.example.stays", sizeof(allocsample_heap_description), &stays);
    allocsample_counters now = {.size = sizeof now};
    CHECK(agent->process_control(ALLOCSAMPLE_SET_INTERVAL, 8192) == ALLOCSAMPLE_OK);
    CHECK(agent->sampled_at(follows.heap, 0x1000, 100, 0, NULL, 0, 8192) != ALLOCSAMPLE_NO_SAMPLE);
    CHECK(agent->sampled(stays.heap, 0x1000, 100, 0, NULL, 0) != ALLOCSAMPLE_NO_SAMPLE);
    CHECK(agent->process_control(ALLOCSAMPLE_SET_INTERVAL, 1) == ALLOCSAMPLE_OK);
    CHECK(agent->counters(follows.heap, &now) == ALLOCSAMPLE_OK && now.interval == 1);
    CHECK(agent->counters(stays.heap, &now) == ALLOCSAMPLE_OK && now.interval == 8192);
    CHECK(agent->sampled_at(follows.heap, 0x2000, 100, 0, NULL, 0, 8192) != ALLOCSAMPLE_NO_SAMPLE);
    CHECK(agent->sampled_at(follows.heap, 0x3000, 100, 0, NULL, 0, 1) != ALLOCSAMPLE_NO_SAMPLE);
    CHECK(agent->sampled_at(follows.heap, 0x4000, 100, 0, NULL, 0, 0) == ALLOCSAMPLE_NO_SAMPLE);
    CHECK(agent->sampled(stays.heap, 0x2000, 100, 0, NULL, 0) != ALLOCSAMPLE_NO_SAMPLE);
}

/* Whoever makes up an interval for each object runs out of numbers: what cannot be told is counted as lost. */
static void intervals_run_out(void)
{
    enum { MORE_THAN_THERE_ARE = 70000 };
    struct listener machine = {0};
    machine.heap = registered("org.example.inventive", sizeof(allocsample_heap_description), &machine);
    uint64_t refused = 0;
    for (uint64_t interval = 2; interval < MORE_THAN_THERE_ARE; interval++)
        refused += agent->sampled_at(machine.heap, interval << 12, 1, 0, NULL, 0, interval) == ALLOCSAMPLE_NO_SAMPLE;
    CHECK(refused > 0);
    CHECK(agent->sampled_at(machine.heap, 0x1000, 1, 0, NULL, 0, 2) != ALLOCSAMPLE_NO_SAMPLE);
    printf("refused %llu\n", (unsigned long long)refused);
}

static void a_plugin_is_left_alone(void)
{
    enum { TOP = 1 << 12 };
    static char memory[TOP];
    uintptr_t start = (uintptr_t)memory, top = start + TOP;
    allocsample_heap *heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_NURSERY, .name = "org.example.plugin",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE, .walk = walk, .on_sample = on_sample});
    CHECK(heap != NULL);
    allocsample_nursery state = {{0}};
    CHECK(agent->nursery_begin(heap, &state, start, top) < top);
    CHECK(agent->nursery_point(heap, &state, start, 64, top, 0) < top);
    allocate_by_malloc();
    CHECK(walks >= 2 && samples == 1);
    CHECK(agent->heap_unregister(heap) == ALLOCSAMPLE_OK);
    walks = samples = 0;
    CHECK(agent->nursery_point(heap, &state, start + 64, 64, top, 0) == top);
    CHECK(agent->alloc(heap, &state, start, 64, 0, start + 128, NULL) == ALLOCSAMPLE_NO_SAMPLE);
    allocate_by_malloc();
    allocsample_pending pending;
    uint64_t cursor = 0;
    CHECK(agent->pending(heap, &state, ALLOCSAMPLE_MINOR, &pending, 1, &cursor) == 0);
    agent->nursery_end(heap, &state, start + 128);
    CHECK(walks == 0 && samples == 0);
}

int main(void)
{
    agent = allocsample_find();
    if (agent == NULL)
        return 2;
    CHECK(ALLOCSAMPLE_CAN(agent, ALLOCSAMPLE_CAN_TELL_CHANGES));
    frees_are_walked_on_request();
    struct listener listener = {0}, older = {0};
    listener.heap = registered("org.example.changes", sizeof(allocsample_heap_description), &listener);
    /* By a header that had no such field. */
    older.heap = registered("org.example.older", offsetof(allocsample_heap_description, on_change), &older);
    CHECK(listener.heap != NULL && older.heap != NULL && listener.calls == 0);

    CHECK(agent->control(listener.heap, ALLOCSAMPLE_STOP, 0) == ALLOCSAMPLE_OK);
    heard(&listener, 0, 0);
    CHECK(agent->control(listener.heap, ALLOCSAMPLE_START, 0) == ALLOCSAMPLE_OK);
    heard(&listener, 1, 1);
    CHECK(agent->control(listener.heap, ALLOCSAMPLE_SET_INTERVAL, 4096) == ALLOCSAMPLE_OK);
    heard(&listener, 1, 4096);
    CHECK(agent->process_control(ALLOCSAMPLE_SET_INTERVAL, 8192) == ALLOCSAMPLE_OK);
    heard(&listener, 1, 8192);
    CHECK(agent->process_control(ALLOCSAMPLE_STOP, 0) == ALLOCSAMPLE_OK);
    heard(&listener, 0, 0);
    CHECK(agent->process_control(ALLOCSAMPLE_START, 1) == ALLOCSAMPLE_OK);
    heard(&listener, 1, 1);

    allocsample_nursery state = {{0}};
    agent->nursery_begin(listener.heap, &state, 0, 0);
    CHECK(allocate(listener.heap, &state) != ALLOCSAMPLE_NO_SAMPLE);
    agent->freed(listener.heap, (uintptr_t)object);

    /* Taken back, it stays silent, whatever is asked for. */
    agent->nursery_end(listener.heap, &state, 0);
    CHECK(agent->heap_unregister(listener.heap) == ALLOCSAMPLE_OK);
    unsigned calls = listener.calls;
    CHECK(agent->process_control(ALLOCSAMPLE_STOP, 0) == ALLOCSAMPLE_OK);
    CHECK(agent->process_control(ALLOCSAMPLE_START, 1) == ALLOCSAMPLE_OK);
    agent->control(listener.heap, ALLOCSAMPLE_START, 0);
    agent->nursery_begin(listener.heap, &state, 0, 0);
    CHECK(allocate(listener.heap, &state) == ALLOCSAMPLE_NO_SAMPLE);
    CHECK(listener.calls == calls && older.calls == 0);
    a_plugin_is_left_alone();
    drawn_samples_have_their_intervals();
    intervals_run_out();
    puts("heard");
    return 0;
}
