// Behaviour: allocates through many different stacks, so that its profile outgrows a small disk.
// Usage: disk_filler [keep]    keep: frees nothing until the end, and then all at once
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

// More than a ring has room for, and as many frees.
static void keep_and_free(void) {
    enum { KEPT = 60000 };
    static void *kept[KEPT];
    unsigned seed = 1;
    for (int at = 0; at < KEPT; at++) kept[at] = by_path(next_random(&seed), 20, 16 + next_random(&seed) % 1000);
    for (int at = 0; at < KEPT; at++) free(kept[at]);
}

int main(int count, char **words) {
    (void)words;
    if (count > 1) keep_and_free();
    unsigned seed = 1;
    for (int turn = 0; turn < 400000; turn++) {
        void *block = by_path(next_random(&seed), 20, 16 + next_random(&seed) % 1000);
        CHECK(block != NULL);
        free(block);
    }
    puts("the disk is not my business");
    return 0;
}
