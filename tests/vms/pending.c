// Behaviour: small stories of samples that wait for a collection, told to the hook ABI by hand, at interval 1.
// Usage: pending fork | discard | late | interval | interrupted | typed | reused
//   fork      the child's first call is an allocation: its collection finds that object, and nothing of the parent's
//   discard   young, old and late samples are given up; later answers are for nobody
//   late      a thread leaves with young samples: one dies in the next minor collection, one in the next major one; one
//             survives a minor, one a major one
//   interval  a sample that is lost (its allocation came out of the walker) has the weight of the interval that drew it
//   interrupted  a signal handler asks how many wait, whatever it has interrupted
//   typed     objects get their types after they were allocated: one of a nursery, which keeps it when it survives, and one that
//             is freed by its address; what is no sample, or no type, is refused
//   reused    blocks that are freed by their address come again and again at one, and no free is told
#include "../../c_shim/include/allocsample.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__LINE__, #condition))
static void check_failed(int line, const char *what)
{
    fprintf(stderr, "pending: line %d: not so: %s\n", line, what);
    _exit(99);
}

enum { NURSERY = 1 << 16, BATCH = 8 };

static const allocsample_hooks *agent;
static allocsample_heap *heap;
static allocsample_nursery nursery;
static char memory[NURSERY];
static uintptr_t place;
static const uintptr_t top = sizeof memory;

static uintptr_t address_of(uintptr_t offset) { return (uintptr_t)memory + offset; }

static void allocate(uint64_t size)
{
    agent->nursery_point(heap, &nursery, address_of(place), size, address_of(top), 1);
    place += size;
}

/* Sizes of what waits, in the order of the list; each gets the fate that `fates` has for it. */
static size_t collect(allocsample_nursery *whose, uint32_t kind, uint64_t *sizes, const uint32_t *fates)
{
    allocsample_pending samples[BATCH];
    allocsample_resolution answers[BATCH];
    uint64_t cursor = 0;
    size_t count = agent->pending(heap, whose, kind, samples, BATCH, &cursor);
    for (size_t at = 0; at < count; at++) {
        sizes[at] = samples[at].size;
        answers[at] = (allocsample_resolution){.id = samples[at].id, .slot = samples[at].slot, .address = 0x1000 + at * 16,
                                               .fate = fates == NULL ? ALLOCSAMPLE_PROMOTED : fates[at]};
    }
    CHECK(agent->resolve(heap, whose, kind, answers, count, 1) == count);
    CHECK(agent->resolve(heap, whose, kind, answers, count, 1) == 0 || kind == ALLOCSAMPLE_MAJOR);
    return count;
}

static void begin(void)
{
    place = 0;
    agent->nursery_begin(heap, &nursery, address_of(0), address_of(top));
}

static void story_fork(void)
{
    uint64_t sizes[BATCH];
    allocate(64);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        allocate(48);
        CHECK(collect(&nursery, ALLOCSAMPLE_MINOR, sizes, NULL) == 1 && sizes[0] == 48);
        exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(collect(&nursery, ALLOCSAMPLE_MINOR, sizes, NULL) == 1 && sizes[0] == 64);
}

static void story_discard(void)
{
    uint64_t sizes[BATCH];
    allocate(16);
    agent->nursery_end(heap, &nursery, address_of(place)); /* late */
    begin();
    allocate(32);
    collect(&nursery, ALLOCSAMPLE_MINOR, sizes, NULL); /* old */
    allocate(48);                                      /* young */
    allocsample_pending samples[BATCH];
    uint64_t cursor = 0;
    CHECK(agent->pending(heap, &nursery, ALLOCSAMPLE_MINOR, samples, BATCH, &cursor) == 1);
    allocsample_resolution answer = {.id = samples[0].id, .slot = samples[0].slot, .fate = ALLOCSAMPLE_DEAD};
    CHECK(agent->control(heap, ALLOCSAMPLE_DISCARD, 0) == ALLOCSAMPLE_OK);
    CHECK(agent->resolve(heap, &nursery, ALLOCSAMPLE_MINOR, &answer, 1, 1) == 0);
    CHECK(collect(&nursery, ALLOCSAMPLE_MINOR, sizes, NULL) == 0);
    CHECK(collect(NULL, ALLOCSAMPLE_MINOR, sizes, NULL) == 0);
    CHECK(collect(NULL, ALLOCSAMPLE_MAJOR, sizes, NULL) == 0);
    allocate(80); /* after it all goes on */
    CHECK(collect(&nursery, ALLOCSAMPLE_MINOR, sizes, NULL) == 1 && sizes[0] == 80);
}

static void story_late(void)
{
    uint64_t sizes[BATCH];
    const uint64_t objects[] = {16, 32, 48, 80};
    for (int at = 0; at < 2; at++)
        allocate(objects[at]);
    agent->nursery_end(heap, &nursery, address_of(place));
    /* The next minor collection moves them like all others: it must find them. */
    const uint32_t minor[] = {ALLOCSAMPLE_DEAD, ALLOCSAMPLE_PROMOTED};
    CHECK(collect(NULL, ALLOCSAMPLE_MINOR, sizes, minor) == 2 && sizes[0] == 16 && sizes[1] == 32);
    CHECK(collect(NULL, ALLOCSAMPLE_MINOR, sizes, minor) == 0);
    begin();
    for (int at = 2; at < 4; at++)
        allocate(objects[at]);
    agent->nursery_end(heap, &nursery, address_of(place));
    /* A machine that does not ask for them there: the major collection is the first to look. */
    const uint32_t major[] = {ALLOCSAMPLE_ALIVE, ALLOCSAMPLE_DEAD, ALLOCSAMPLE_ALIVE};
    CHECK(collect(NULL, ALLOCSAMPLE_MAJOR, sizes, major) == 3);
    CHECK(sizes[0] == 32 && sizes[1] == 48 && sizes[2] == 80);
    CHECK(collect(NULL, ALLOCSAMPLE_MAJOR, sizes, major) == 2);
}

static allocsample_heap *outside;
static allocsample_nursery outside_state;

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user, (void)frames, (void)capacity;
    /* A machine that does what it must not. */
    if (outside != NULL)
        agent->alloc(outside, &outside_state, 0x5000, 1000, 0, 0, NULL);
    return 0;
}

static void story_interval(void)
{
    allocsample_heap *other =
        agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                             .kind = ALLOCSAMPLE_EXTERNAL,
                                                             .name = "org.example.outside",
                                                             .interval = 1});
    agent->nursery_begin(other, &outside_state, 0, 0);
    agent->control(other, ALLOCSAMPLE_SET_INTERVAL, 1 << 20);
    outside = other;
    allocate(64);
    outside = NULL;
}

static volatile sig_atomic_t questions;
static volatile uint64_t waiting;

static void on_signal(int number)
{
    (void)number;
    allocsample_counters counters = {.size = sizeof counters};
    if (agent->counters(heap, &counters) == ALLOCSAMPLE_OK)
        waiting = counters.pending;
    questions++;
}

static void story_typed(void)
{
    uint64_t sizes[BATCH];
    agent->nursery_point(heap, &nursery, address_of(place), 32, address_of(top), 0);
    place += 32;
    allocsample_pending sample;
    uint64_t cursor = 0;
    CHECK(agent->pending(heap, &nursery, ALLOCSAMPLE_MINOR, &sample, 1, &cursor) == 1 && sample.type == 0);
    CHECK(agent->typed(heap, sample.id, 1) == ALLOCSAMPLE_OK);
    CHECK(collect(&nursery, ALLOCSAMPLE_MINOR, sizes, NULL) == 1);

    allocsample_heap *other =
        agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                             .kind = ALLOCSAMPLE_EXTERNAL,
                                                             .name = "org.example.freed",
                                                             .interval = 1});
    agent->define_type(other, 7, "Freed", NULL);
    agent->nursery_begin(other, &outside_state, 1, (uintptr_t)1 << 40);
    allocsample_id id = agent->alloc(other, &outside_state, 0x5000, 100, 0, 101, NULL);
    CHECK(id != ALLOCSAMPLE_NO_SAMPLE);
    CHECK(agent->typed(other, id, 7) == ALLOCSAMPLE_OK);
    agent->freed(other, 0x5000);

    CHECK(agent->typed(other, ALLOCSAMPLE_NO_SAMPLE, 7) == ALLOCSAMPLE_INVALID);
    CHECK(agent->typed(other, id, 0) == ALLOCSAMPLE_INVALID);
    CHECK(agent->typed(NULL, id, 7) == ALLOCSAMPLE_INVALID);
    CHECK(agent->typed(other, id, 1) == ALLOCSAMPLE_OK); /* it is freed: nobody is told */
}

static long address_space_pages(void)
{
    long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    CHECK(sizes != NULL && fscanf(sizes, "%ld", &pages) == 1);
    fclose(sizes);
    return pages;
}

static void story_reused(void)
{
    enum { BLOCKS = 1000, SIZE = 100, PAGES_OF_1_GIB = 1 << 18 };
    allocsample_heap *other =
        agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                             .kind = ALLOCSAMPLE_EXTERNAL,
                                                             .name = "org.example.reused",
                                                             .interval = 1});
    agent->define_type(other, 7, "Reused", NULL);
    agent->nursery_begin(other, &outside_state, 1, (uintptr_t)1 << 40);
    long before = address_space_pages();
    for (uintptr_t at = 1; at <= BLOCKS; at++)
        CHECK(agent->alloc(other, &outside_state, 0x5000, SIZE, 7, 1 + at * SIZE, NULL) != ALLOCSAMPLE_NO_SAMPLE);
    CHECK(address_space_pages() - before < PAGES_OF_1_GIB);
}

static void story_interrupted(void)
{
    enum { SURVIVORS = 2000, QUESTIONS = 300 };
    uint64_t sizes[BATCH];
    for (int at = 0; at < SURVIVORS; at++) {
        allocate(16);
        CHECK(collect(&nursery, ALLOCSAMPLE_MINOR, sizes, NULL) == 1);
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    /* Nearly all of its time it is in the list of survivors. */
    while (questions < QUESTIONS)
        CHECK(collect(NULL, ALLOCSAMPLE_MAJOR, sizes, NULL) == BATCH);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && waiting == SURVIVORS);
    const uint32_t dead[BATCH] = {0};
    for (int left = SURVIVORS; left > 0; left -= BATCH)
        CHECK(collect(NULL, ALLOCSAMPLE_MAJOR, sizes, dead) == BATCH);
    on_signal(0);
    CHECK(waiting == 0);
}

int main(int count, char **words)
{
    agent = allocsample_find();
    if (agent == NULL || count < 2)
        return 2;
    heap = agent->heap_register(&(allocsample_heap_description){.size = sizeof(allocsample_heap_description),
                                                                .kind = ALLOCSAMPLE_NURSERY,
                                                                .name = "org.example.pending",
                                                                .walk = walk});
    agent->define_type(heap, 1, "Object", NULL);
    begin();
    if (strcmp(words[1], "fork") == 0)
        story_fork();
    else if (strcmp(words[1], "discard") == 0)
        story_discard();
    else if (strcmp(words[1], "late") == 0)
        story_late();
    else if (strcmp(words[1], "interrupted") == 0)
        story_interrupted();
    else if (strcmp(words[1], "typed") == 0)
        story_typed();
    else if (strcmp(words[1], "reused") == 0)
        story_reused();
    else
        story_interval();
    return 0;
}
