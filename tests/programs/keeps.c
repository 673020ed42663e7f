// Behaviour: a program that keeps all that it allocates, with pauses.
// Usage: keeps COUNT SIZE
#include "check.h"

#include <time.h>

NOINLINE static void *kept(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

int main(int count, char **words) {
    CHECK(count == 3);
    long blocks = atol(words[1]);
    for (long at = 0; at < blocks; at++) {
        void **block = kept((size_t)atol(words[2]));
        CHECK(block != NULL);
        *block = NULL;
        struct timespec pause = {.tv_nsec = 2000000};
        if (at % 1000 == 0) nanosleep(&pause, NULL);
    }
    return 0;
}
