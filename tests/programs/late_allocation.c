// Behaviour: allocations in thread-specific destructors, atexit handlers and destructors, after everybody else is done.
#include "check.h"

#include <pthread.h>

enum { THREADS = 50, ROUNDS = 4, BYTES = 5000 };

static pthread_key_t key;
static int rounds_seen;

NOINLINE void *allocated_in_a_key_destructor(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

// Comes back as often as POSIX allows, so that it runs after the destructors of all other keys.
static void destroy(void *value) {
    char *block = value;
    CHECK(is_painted(block, BYTES, 1));
    int round = block[BYTES];
    free(block);
    __atomic_add_fetch(&rounds_seen, 1, __ATOMIC_RELAXED);
    churn(20, 9000, (unsigned)round);
    if (round + 1 == ROUNDS) return;
    block = allocated_in_a_key_destructor(BYTES + 1);
    paint(block, BYTES, 1);
    block[BYTES] = (char)(round + 1);
    CHECK(pthread_setspecific(key, block) == 0);
}

static void *thread_with_a_key(void *unused) {
    char *block = malloc(BYTES + 1);
    paint(block, BYTES, 1);
    block[BYTES] = 0;
    CHECK(pthread_setspecific(key, block) == 0);
    return unused;
}

static void *kept;

static void at_exit(void) {
    churn(1000, 5000, 7);
    kept = malloc(BYTES);
    paint(kept, BYTES, 2);
}

__attribute__((destructor(101))) static void last_of_all(void) {
    CHECK(is_painted(kept, BYTES, 2));
    free(kept);
    churn(1000, 5000, 8);
    if (write(1, "the last destructor allocated\n", 30) != 30) _exit(97);
}

int main(void) {
    CHECK(pthread_key_create(&key, destroy) == 0);
    CHECK(atexit(at_exit) == 0);
    for (int at = 0; at < THREADS; at++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, thread_with_a_key, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
    printf("%d rounds of destructors\n", rounds_seen);
    fflush(stdout);
    return 0;
}
