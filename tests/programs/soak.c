// Behaviour: eight threads that allocate with pauses, through 4,096 different stacks, keep a window of blocks, and are
// replaced by new threads time and again.
// Usage: soak SECONDS
#include "check.h"

#include <pthread.h>
#include <time.h>

enum { THREADS = 8, WINDOW = 1000, BLOCKS = 300, TURNS = 50, DEPTH = 12 };

static double since_start(void) {
    static double start;
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    if (start == 0) start = seconds;
    return seconds - start;
}

NOINLINE static void *by_path(unsigned path, int depth, size_t size) {
    void *block;
    if (depth == 0) return malloc(size);
    // Two calls, two return addresses.
    if (path & 1) {
        block = by_path(path >> 1, depth - 1, size);
        KEEP(block);
    } else {
        block = by_path(path >> 1, depth - 1, size);
        KEEP(&block);
    }
    return block;
}

static void *work(void *seed_of_thread) {
    unsigned seed = (unsigned)(size_t)seed_of_thread;
    void *window[WINDOW] = {0};
    for (int turn = 0; turn < TURNS; turn++) {
        for (int at = 0; at < BLOCKS; at++) {
            void **place = &window[next_random(&seed) % WINDOW];
            free(*place);
            *place = by_path(next_random(&seed), DEPTH, 1 + next_random(&seed) % 8000);
            CHECK(*place != NULL);
        }
        struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
    }
    for (int at = 0; at < WINDOW; at++) free(window[at]);
    return NULL;
}

int main(int count, char **words) {
    CHECK(count == 2);
    double seconds = atof(words[1]);
    since_start();
    for (size_t generation = 1; since_start() < seconds; generation++) {
        pthread_t threads[THREADS];
        for (size_t at = 0; at < THREADS; at++)
            CHECK(pthread_create(&threads[at], NULL, work, (void *)(generation * THREADS + at)) == 0);
        for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    }
    puts("soaked");
    return 0;
}
