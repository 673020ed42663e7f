// A program for debuggers: three threads that allocate all the time, each in functions of its own name, and a main thread that
// prints a line a second. Ends when its standard input does. With an argument: aborts then.
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 100, PAUSE_US = 1000 };

static __attribute__((noinline)) void allocate_blocks(size_t size) {
    void *blocks[BLOCKS];
    for (int at = 0; at < BLOCKS; at++) {
        blocks[at] = malloc(size);
        memset(blocks[at], 1, size);
    }
    for (int at = 0; at < BLOCKS; at++) {
        free(blocks[at]);
    }
    usleep(PAUSE_US);
}

#define WORKER(name, size)                                       \
    static __attribute__((noinline)) void *name(void *unused) {  \
        for (;;) {                                               \
            allocate_blocks(size);                               \
        }                                                        \
        return unused;                                           \
    }
WORKER(first_worker, 200)
WORKER(second_worker, 3000)
WORKER(third_worker, 20000)

static __attribute__((noinline)) int wait_for_the_end(int aborts) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        if (poll(&input, 1, 1000) > 0) {
            if (aborts) {
                abort();
            }
            return 0;
        }
        puts("alive");
        fflush(stdout);
    }
}

int main(int count, char **unused) {
    (void)unused;
    pthread_t thread;
    pthread_create(&thread, NULL, first_worker, NULL);
    pthread_create(&thread, NULL, second_worker, NULL);
    pthread_create(&thread, NULL, third_worker, NULL);
    return wait_for_the_end(count > 1);
}
