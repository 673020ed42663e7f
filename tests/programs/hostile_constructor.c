// Behaviour: a preloaded library allocates a lot in its constructor and destructor, and asks dlsym for the allocator.
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

enum { BLOCKS = 5000, BYTES = 700 };

static void *early[BLOCKS];

static void *other_thread(void *unused) {
    churn(2000, 2000, 3);
    return unused;
}

__attribute__((constructor(101))) static void allocate_early(void) {
    const char *const names[] = {"malloc", "calloc", "realloc", "free", "posix_memalign", "no_such_function_anywhere"};
    for (int at = 0; at < BLOCKS; at++) {
        early[at] = calloc(1, BYTES);
        CHECK(early[at] != NULL);
        paint(early[at], BYTES, (unsigned)at);
        if (at % 100 == 0) CHECK((dlsym(RTLD_NEXT, names[at / 100 % 6]) != NULL) == (at / 100 % 6 != 5));
    }
    // A failed dlsym leaves an error text behind, which the C library allocates.
    (void)dlerror();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

__attribute__((destructor(101))) static void free_late(void) {
    for (int at = 0; at < BLOCKS; at++) {
        CHECK(is_painted(early[at], BYTES, (unsigned)at));
        free(early[at]);
    }
    churn(2000, 3000, 5);
}
