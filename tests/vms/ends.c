// Behaviour: a machine that samples by itself, allocates and drops objects as a seed says, and reports their ends one by one or many in
// a call: ends HOW SEED STEPS THEN. HOW is `freed`, by address, or `died`, by id. THEN is `exit`, `kill` (itself), `rotate` (halfway),
// or `fork` (halfway; the child reports the parent's ends, which must change nothing).
#define _GNU_SOURCE
#include "../../c_shim/include/allocsample.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__LINE__, #condition))
static void check_failed(int line, const char *what)
{
    fprintf(stderr, "ends: line %d: not so: %s\n", line, what);
    _exit(99);
}

enum { MOST = 1 << 16, STEP = 128, INTERVAL = 4096, TYPES = 3, COLLECT_EVERY = 700 };

struct object {
    allocsample_id id;
    uintptr_t address;
};

static const allocsample_hooks *agent;
static allocsample_heap *heap;
static struct object live[MOST];
static allocsample_id dead[MOST];
static size_t live_count;
static bool by_id;
static uint64_t state;

static uint64_t random_below(uint64_t limit)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % limit;
}

static void allocate(uint64_t number)
{
    allocsample_frame frames[] = {{.function = 1 + (uint32_t)random_below(2), .line = 7}, {.function = 3, .line = 9}};
    uint64_t size = 1 + random_below(20000);
    uint32_t type = 1 + (uint32_t)random_below(TYPES);
    uintptr_t address = (number + 1) * STEP;
    allocsample_id id = agent->sampled_at(heap, address, size, type, frames, 2, INTERVAL);
    CHECK(id != ALLOCSAMPLE_NO_SAMPLE && live_count < MOST);
    live[live_count++] = (struct object){id, address};
}

/* Each object dies with a chance of one in `chance`. */
static void collect(uint64_t chance, uint64_t number)
{
    size_t kept = 0, dead_count = 0;
    uint64_t begin_ns = agent->now_ns();
    for (size_t i = 0; i < live_count; i++) {
        if (random_below(chance) > 0)
            live[kept++] = live[i];
        else if (by_id)
            dead[dead_count++] = live[i].id;
        else
            agent->freed(heap, live[i].address);
    }
    live_count = kept;
    if (by_id)
        agent->died(heap, dead, dead_count);
    allocsample_gc gc = {.size = sizeof gc, .kind = ALLOCSAMPLE_MAJOR, .id = number, .begin_ns = begin_ns, .end_ns = agent->now_ns()};
    CHECK(agent->gc(heap, &gc) == ALLOCSAMPLE_OK);
}

static void halfway(const char *then)
{
    if (strcmp(then, "rotate") == 0)
        CHECK(agent->process_control(ALLOCSAMPLE_ROTATE, 0) == ALLOCSAMPLE_OK);
    if (strcmp(then, "fork") != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        collect(2, 1);
        /* The child's own. */
        live_count = 0;
        for (uint64_t i = 0; i < 10; i++)
            allocate(i);
        collect(1, 2);
        allocate(10);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **words)
{
    CHECK(count == 5);
    by_id = strcmp(words[1], "died") == 0;
    state = strtoull(words[2], NULL, 10);
    uint64_t steps = strtoull(words[3], NULL, 10);
    const char *then = words[4];
    agent = allocsample_find();
    if (!ALLOCSAMPLE_HAS(agent, died))
        return 1;
    heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_COLLECTED, .name = "org.example.ends",
        .flags = by_id ? ALLOCSAMPLE_ENDS_BY_ID : 0});
    CHECK(heap != NULL);
    static const char *const types[TYPES] = {"One", "Two", "Three"}, *const functions[] = {"left", "right", "root"};
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(agent->define_type(heap, i + 1, types[i], "") == ALLOCSAMPLE_OK);
        CHECK(agent->define_function(heap, i + 1, functions[i], "ends.vm", 1) == ALLOCSAMPLE_OK);
    }
    agent->died(NULL, dead, 1);
    agent->died(heap, NULL, 1);
    agent->died(heap, dead, 0);
    for (uint64_t i = 0; i < steps; i++) {
        allocate(i);
        if (random_below(COLLECT_EVERY) == 0 || live_count == MOST)
            collect(1 + random_below(4), i);
        if (i == steps / 2)
            halfway(then);
    }
    if (by_id) {
        /* What has no meaning changes nothing: the addresses of samples, and ids of another time. */
        agent->freed(heap, live[0].address);
        allocsample_id unknown = live[0].id ^ UINT64_C(1) << 48;
        agent->died(heap, &unknown, 1);
    }
    if (strcmp(then, "kill") == 0)
        kill(getpid(), SIGKILL);
    return 0;
}
