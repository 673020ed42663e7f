// Behaviour: allocations at the end of known chains of calls: plain, through the PLT, by qsort, from signal handlers.
// Usage: chain plain|plt|qsort|signal|vdso|plt_signal|thread
// Built without frame pointers. tests/agent/stacks.rs knows the chains by the functions' names.
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

enum { TURNS = 3000 };

NOINLINE void *chain_end(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *chain_middle(size_t size) {
    char pad[48];
    KEEP(pad);
    void *block = chain_end(size);
    KEEP(pad);
    return block;
}

NOINLINE void *chain_start(size_t size) {
    volatile char pad[200];
    pad[size % 200] = 1;
    void *block = chain_middle(size + (size_t)pad[size % 200]);
    KEEP(block);
    return block;
}

NOINLINE void plain(void) {
    for (int turn = 0; turn < TURNS; turn++) free(chain_start(1000));
}

// In the library that this program is linked with, whose functions are bound lazily.
extern void *linked_start(void *(*callback)(size_t), size_t size);
extern int linked_nothing(int value);

NOINLINE void through_the_plt(void) {
    for (int turn = 0; turn < TURNS; turn++) free(linked_start(chain_middle, 1000));
}

NOINLINE static int allocating_compare(const void *left, const void *right) {
    free(chain_end(100));
    return *(const int *)left - *(const int *)right;
}

NOINLINE void sort_numbers(void) {
    int numbers[1000];
    unsigned seed = 1;
    for (int turn = 0; turn < 10; turn++) {
        for (int at = 0; at < 1000; at++) numbers[at] = (int)next_random(&seed);
        qsort(numbers, 1000, sizeof numbers[0], allocating_compare);
    }
    for (int at = 1; at < 1000; at++) CHECK(numbers[at - 1] <= numbers[at]);
}

static volatile sig_atomic_t handled;

static void on_alarm(int number) {
    (void)number;
    free(chain_middle(3000));
    handled++;
}

NOINLINE void spin_without_calls(void) {
    while (handled < 400) __asm__ volatile("");
}

NOINLINE void ask_the_clock(void) {
    struct timespec now;
    while (handled < 400) clock_gettime(CLOCK_MONOTONIC, &now);
}

NOINLINE void call_through_the_plt(void) {
    int value = 0;
    while (handled < 400) value = linked_nothing(value);
}

static void with_alarms(void (*run)(void)) {
    // The first allocations are made outside of handlers.
    free(malloc(100));
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    run();
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void *thread_main(void *unused) {
    plain();
    return unused;
}

int main(int count, char **words) {
    CHECK(count == 2);
    const char *way = words[1];
    if (!strcmp(way, "plain")) plain();
    else if (!strcmp(way, "plt")) through_the_plt();
    else if (!strcmp(way, "qsort")) sort_numbers();
    else if (!strcmp(way, "signal")) with_alarms(spin_without_calls);
    else if (!strcmp(way, "vdso")) with_alarms(ask_the_clock);
    else if (!strcmp(way, "plt_signal")) with_alarms(call_through_the_plt);
    else if (!strcmp(way, "thread")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, thread_main, NULL) == 0 && pthread_join(thread, NULL) == 0);
    } else
        CHECK(!"a known way");
    puts("the chain held");
    return 0;
}
