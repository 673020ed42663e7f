// Behaviour: a program whose load changes a hundredfold and back, several times; prints what each site allocated.
// Usage: load_changes ROUNDS MILLISECONDS_OF_EACH      each round lasts so long
//        load_changes ROUNDS CALM_TURNS STORM_TURNS    each round has so much to do; prints the seconds of a processor, too,
//                                                      and has a thread that only waits, as libc's malloc is cheaper in
//                                                      a process that has a single one
#include "check.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

static unsigned long long bytes_of[3];

NOINLINE static void *take(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

#define SITE(NUMBER, NAME)                       \
    NOINLINE static void NAME(size_t size) {     \
        void *block = take(size);                \
        bytes_of[NUMBER] += size;                \
        free(block);                             \
        KEEP(&bytes_of[NUMBER]);                 \
    }

SITE(0, in_both)
SITE(1, in_the_storm)
SITE(2, in_the_calm)

static double cpu_seconds(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// Work that allocates nothing: about the time of `blocks` allocations.
NOINLINE static void compute(unsigned blocks) {
    volatile unsigned state = 1;
    for (unsigned at = 0; at < blocks * 16; at++) state = state * 1664525u + 1013904223u;
}

static void *wait(void *argument) {
    (void)argument;
    for (;;) pause();
    return NULL;
}

static unsigned seed = 7;

NOINLINE static void work(int is_storm) {
    for (int turn = 0; turn < 200; turn++) {
        size_t size = 16 + next_random(&seed) % 2000;
        in_both(size);
        if (is_storm)
            in_the_storm(size / 2 + 1);
        else
            in_the_calm(size / 2 + 1);
        if (!is_storm) compute(200);
    }
}

int main(int count, char **words) {
    CHECK(count == 3 || count == 4);
    int rounds = atoi(words[1]);
    pthread_t thread;
    if (count == 4) CHECK(pthread_create(&thread, NULL, wait, NULL) == 0);
    double seconds = atof(words[2]) / 1000, used[2] = {0, 0};
    for (int round = 0; round < rounds; round++) {
        int is_storm = round % 2;
        double since = cpu_seconds();
        if (count == 4)
            for (long turns = atol(words[2 + is_storm]); turns > 0; turns--) work(is_storm);
        else
            // By the processor's time: a busy machine makes it longer, not another program.
            while (cpu_seconds() - since < seconds) work(is_storm);
        used[is_storm] += cpu_seconds() - since;
    }
    printf("{\"in_both\": %llu, \"in_the_storm\": %llu, \"in_the_calm\": %llu}\n", bytes_of[0], bytes_of[1], bytes_of[2]);
    if (count == 4) printf("{\"calm_s\": %.6f, \"storm_s\": %.6f}\n", used[0], used[1]);
    return 0;
}
