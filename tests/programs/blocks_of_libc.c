// Behaviour: calls each of libc's functions that allocate as often as the others, from a function of its own.
#include "check.h"

#include <malloc.h>
#include <stdint.h>
#include <string.h>

#define CALLS 100
#define BYTES 4096

#define BLOCKS_OF(NAME, CALL)                                                                                          \
    NOINLINE void *by_##NAME(void) {                                                                                   \
        void *block = NULL;                                                                                            \
        CALL;                                                                                                          \
        KEEP(block);                                                                                                   \
        return block;                                                                                                  \
    }
BLOCKS_OF(malloc, block = malloc(BYTES))
BLOCKS_OF(calloc, block = calloc(BYTES / 8, 8))
BLOCKS_OF(realloc, block = realloc(NULL, BYTES))
BLOCKS_OF(reallocarray, block = reallocarray(NULL, BYTES / 8, 8))
BLOCKS_OF(posix_memalign, CHECK(posix_memalign(&block, 64, BYTES) == 0))
BLOCKS_OF(memalign, block = memalign(64, BYTES))
BLOCKS_OF(aligned_alloc, block = aligned_alloc(64, BYTES))
BLOCKS_OF(valloc, block = valloc(BYTES))

static void *(*const functions[])(void) = {
    by_malloc, by_calloc, by_realloc, by_reallocarray, by_posix_memalign, by_memalign, by_aligned_alloc, by_valloc,
};

// A block that was used and freed before is all zeros, and an untouched one of many pages stays so.
static void check_calloc(void) {
    for (size_t bytes = 1; bytes < 3 << 16; bytes = bytes * 3 + 7) {
        char *used = malloc(bytes);
        CHECK(used != NULL);
        memset(used, 0xa5, bytes);
        used[bytes - 1] = 1;
        free(used);
        char *cleared = calloc(1, bytes);
        CHECK(cleared != NULL);
        for (size_t at = 0; at < bytes; at++) CHECK(cleared[at] == 0);
        free(cleared);
    }
    CHECK(calloc(SIZE_MAX / 2, 3) == NULL);
    void *block = (void *)1;
    CHECK(posix_memalign(&block, 3, 8) != 0 && block == (void *)1);
    CHECK(posix_memalign(&block, 1 << 16, 8) == 0 && (uintptr_t)block % (1 << 16) == 0);
    free(block);
}

int main(void) {
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        for (int call = 0; call < CALLS; call++) CHECK(functions[i]() != NULL);
    check_calloc();
    puts("done");
    return 0;
}
