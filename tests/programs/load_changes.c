// Behaviour: a program whose load changes a hundredfold and back, several times; prints what each site allocated.
// Usage: load_changes ROUNDS MILLISECONDS_OF_EACH      each round lasts so long
//        load_changes ROUNDS CALM_TURNS STORM_TURNS    each round has so much to do; prints the seconds of a processor, too,
//                                                      and has a thread that only waits, as libc's malloc is cheaper in
//                                                      a process that has a single one
//        load_changes ROUNDS CALM_TURNS STORM_TURNS BLOCKS   the same in so many pairs of blocks a round; of each pair one, by
//                                                      chance, is not sampled; prints their seconds apart
#include "../../c_shim/include/allocsample.h"
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

static double seconds_of(clockid_t clock) {
    struct timespec now;
    CHECK(clock_gettime(clock, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
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

static void work_for(long turns, int is_storm) {
    for (; turns > 0; turns--) work(is_storm);
}

// Seconds of this thread, not sampled and sampled.
static void work_by_halves(long turns, int is_storm, int blocks, double used[2]) {
    static unsigned coin = 11;
    const allocsample_hooks *hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    CHECK(hooks != NULL);
    for (int pair = 0; pair < blocks; pair++) {
        int first = next_random(&coin) % 2;
        for (int half = 0; half < 2; half++) {
            int is_sampled = first ^ half;
            CHECK(hooks->thread_enable((uint32_t)is_sampled) == 0);
            double since = seconds_of(CLOCK_THREAD_CPUTIME_ID);
            work_for(turns / blocks / 2, is_storm);
            used[is_sampled] += seconds_of(CLOCK_THREAD_CPUTIME_ID) - since;
        }
    }
}

static int compare_halves(int rounds, const long turns[2], int blocks) {
    double used[2][2] = {{0}};
    for (int round = 0; round < rounds; round++) work_by_halves(turns[round % 2], round % 2, blocks, used[round % 2]);
    printf("{\"calm_s\": [%.6f, %.6f], \"storm_s\": [%.6f, %.6f], \"others_s\": %.6f}\n", used[0][0], used[0][1], used[1][0],
           used[1][1], cpu_seconds() - seconds_of(CLOCK_THREAD_CPUTIME_ID));
    return 0;
}

int main(int count, char **words) {
    CHECK(count >= 3 && count <= 5);
    if (count == 5) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, wait, NULL) == 0);
        return compare_halves(atoi(words[1]), (long[]){atol(words[2]), atol(words[3])}, atoi(words[4]));
    }
    int rounds = atoi(words[1]);
    pthread_t thread;
    if (count == 4) CHECK(pthread_create(&thread, NULL, wait, NULL) == 0);
    double seconds = atof(words[2]) / 1000, used[2] = {0, 0};
    for (int round = 0; round < rounds; round++) {
        int is_storm = round % 2;
        double since = cpu_seconds();
        if (count == 4)
            work_for(atol(words[2 + is_storm]), is_storm);
        else
            // By the processor's time: a busy machine makes it longer, not another program.
            while (cpu_seconds() - since < seconds) work(is_storm);
        used[is_storm] += cpu_seconds() - since;
    }
    printf("{\"in_both\": %llu, \"in_the_storm\": %llu, \"in_the_calm\": %llu}\n", bytes_of[0], bytes_of[1], bytes_of[2]);
    if (count == 4) printf("{\"calm_s\": %.6f, \"storm_s\": %.6f}\n", used[0], used[1]);
    return 0;
}
