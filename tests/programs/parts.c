// Behaviour: two threads, one after the other, keep some blocks and free others; before it ends, half of what was kept is freed.
#include "check.h"

#include <pthread.h>

enum { BLOCKS = 400 };

static void *kept[2][BLOCKS];

NOINLINE static void *make(size_t bytes) {
    void *block = malloc(bytes);
    KEEP(block);
    return block;
}

NOINLINE static void keep(void **place, size_t bytes) { *place = make(bytes); }

NOINLINE static void pass_on(size_t bytes) { free(make(bytes)); }

static void *work(void *argument) {
    size_t own = (size_t)argument;
    if (own) CHECK(pthread_setname_np(pthread_self(), "other") == 0);
    for (size_t at = 0; at < BLOCKS; at++) {
        keep(&kept[own][at], 1000 + at * (own + 1));
        for (int turn = 0; turn < 3; turn++) pass_on(500 + at);
    }
    return NULL;
}

int main(void) {
    work((void *)0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, (void *)1) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    for (size_t at = 0; at < BLOCKS; at += 2)
        for (int own = 0; own < 2; own++) free(kept[own][at]);
    for (size_t at = 0; at < 2 * BLOCKS; at++) pass_on(100);
    return 0;
}
