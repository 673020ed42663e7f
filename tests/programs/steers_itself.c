// Behaviour: a program that steers its own agent, if there is one: stops, starts, changes the interval, leaves a thread out,
// then sizes and names of threads, and has a copy, another file and a new beginning made. Without the agent it does the same and asks nobody.
#include "../../c_shim/include/allocsample.h"
#include "check.h"

#include <errno.h>
#include <pthread.h>

static const allocsample_hooks *agent;

#define BLOCKS(name)                                                                                                   \
    NOINLINE void name(int count) {                                                                                    \
        while (count-- > 0) {                                                                                          \
            void *block = malloc(100);                                                                                 \
            KEEP(block);                                                                                               \
            free(block);                                                                                               \
        }                                                                                                              \
    }
BLOCKS(at_first)
BLOCKS(while_stopped)
BLOCKS(again)
BLOCKS(left_out)
BLOCKS(too_small)
BLOCKS(before_reset)
BLOCKS(at_last)

static void order(uint32_t operation, uint64_t value) {
    if (!agent) return;
    errno = 77;
    CHECK(agent->process_control(operation, value) == ALLOCSAMPLE_OK);
    CHECK(errno == 77);
}

static allocsample_status status(void) {
    static allocsample_status found;
    found.size = sizeof found;
    if (agent) CHECK(agent->process_status(&found) == ALLOCSAMPLE_OK);
    return found;
}

static void *thread(void *argument) {
    (void)argument;
    if (agent) CHECK(agent->thread_select(0, 0) == ALLOCSAMPLE_OK);
    left_out(1000);
    if (agent) CHECK(agent->thread_select(0, 1) == ALLOCSAMPLE_OK);
    again(1000);
    return NULL;
}

int main(void) {
    agent = allocsample_find();
    if (agent && !ALLOCSAMPLE_CAN(agent, ALLOCSAMPLE_CAN_CONTROL_PROCESS)) return 2;
    at_first(1000);
    if (agent) {
        allocsample_status now = status();
        CHECK(now.is_on && now.interval == 1 && now.lost_samples == 0 && now.profile[0] == '/');
        CHECK(now.ring_used_bytes <= now.ring_bytes && now.ring_bytes > 0 && now.memory_bytes > 0);
        now.size = 8;
        CHECK(agent->process_status(&now) == ALLOCSAMPLE_INVALID);
        CHECK(agent->process_status(NULL) == ALLOCSAMPLE_INVALID);
        CHECK(agent->process_control(99, 0) == ALLOCSAMPLE_INVALID);
        CHECK(agent->process_control(ALLOCSAMPLE_DISCARD, 0) == ALLOCSAMPLE_INVALID);
        CHECK(agent->process_control(ALLOCSAMPLE_SET_INTERVAL, 0) == ALLOCSAMPLE_INVALID);
        CHECK(agent->process_control(ALLOCSAMPLE_START, UINT64_MAX) == ALLOCSAMPLE_INVALID);
        CHECK(agent->process_control(ALLOCSAMPLE_STOP, 1) == ALLOCSAMPLE_INVALID);
    }
    order(ALLOCSAMPLE_STOP, 0);
    CHECK(!agent || !status().is_on);
    while_stopped(1000);
    order(ALLOCSAMPLE_START, 0);
    CHECK(!agent || status().interval == 1);
    again(1000);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    if (agent) {
        CHECK(ALLOCSAMPLE_HAS(agent, process_filter));
        allocsample_filter filter = {.size = sizeof filter, .least_bytes = 200};
        CHECK(agent->process_filter(&filter) == ALLOCSAMPLE_OK);
        too_small(1000);
        filter.threads = "nobody*";
        filter.least_bytes = 0;
        CHECK(agent->process_filter(&filter) == ALLOCSAMPLE_OK);
        too_small(1000);
        filter.threads = "a*b";
        CHECK(agent->process_filter(&filter) == ALLOCSAMPLE_INVALID);
        filter.threads = "";
        CHECK(agent->process_filter(&filter) == ALLOCSAMPLE_INVALID);
        filter = (allocsample_filter){.size = sizeof filter, .least_bytes = 2, .most_bytes = 1};
        CHECK(agent->process_filter(&filter) == ALLOCSAMPLE_INVALID);
        filter.size = 8;
        CHECK(agent->process_filter(&filter) == ALLOCSAMPLE_INVALID);
        CHECK(agent->process_filter(NULL) == ALLOCSAMPLE_OK);
    } else {
        too_small(2000);
    }
    order(ALLOCSAMPLE_FLUSH, 0);
    CHECK(!agent || status().profile_bytes > 0);
    order(ALLOCSAMPLE_SNAPSHOT, 0);
    order(ALLOCSAMPLE_ROTATE, 0);
    before_reset(1000);
    order(ALLOCSAMPLE_RESET, 0);
    at_last(1000);
    order(ALLOCSAMPLE_SET_INTERVAL, 4096);
    CHECK(!agent || status().interval == 4096);
    puts("steered");
    return 0;
}
