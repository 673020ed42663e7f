// Behaviour: allocates through many different stacks, so that its profile outgrows a small disk.
#include "check.h"

NOINLINE void *allocated_on_a_full_disk(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE static void *by_path(unsigned path, int depth, size_t size) {
    void *block;
    if (depth == 0) return allocated_on_a_full_disk(size);
    // Two calls, two return addresses: 2^20 stacks.
    if (path & 1) {
        block = by_path(path >> 1, depth - 1, size);
        KEEP(block);
    } else {
        block = by_path(path >> 1, depth - 1, size);
        KEEP(&block);
    }
    return block;
}

int main(void) {
    unsigned seed = 1;
    for (int turn = 0; turn < 400000; turn++) {
        void *block = by_path(next_random(&seed), 20, 16 + next_random(&seed) % 1000);
        CHECK(block != NULL);
        free(block);
    }
    puts("the disk is not my business");
    return 0;
}
