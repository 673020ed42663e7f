// Behaviour: allocates and checks blocks steadily, a little at a time, until its input ends; then it says that all was well.
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { BLOCKS = 64, SIZE = 4096 };

static atomic_bool is_over;

NOINLINE static void take(unsigned tag) {
    char *blocks[BLOCKS];
    for (unsigned at = 0; at < BLOCKS; at++) {
        blocks[at] = malloc(SIZE);
        CHECK(blocks[at] != NULL);
        paint(blocks[at], SIZE, tag + at);
    }
    for (unsigned at = 0; at < BLOCKS; at++) {
        CHECK(is_painted(blocks[at], SIZE, tag + at));
        free(blocks[at]);
    }
}

static void *work(void *argument) {
    (void)argument;
    for (unsigned tag = 0; !atomic_load(&is_over); tag++) {
        take(tag);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return NULL;
}

int main(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    atomic_store(&is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    puts("well");
    return 0;
}
