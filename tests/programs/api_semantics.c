// Behaviour: every function of the malloc family does what its manual says, and what it says about errno.
// Usage: api_semantics [--as-it-comes]
// What the manuals leave open is printed, so that it can be compared with a run without the agent. With --as-it-comes
// so are the liberties that other allocators than glibc's take with errno, and pvalloc, which not all have, is left out.
#include "check.h"

#include <malloc.h>
#include <stdint.h>

// Since C23; older C libraries have neither.
extern void free_sized(void *block, size_t size) __attribute__((weak));
extern void free_aligned_sized(void *block, size_t alignment, size_t size) __attribute__((weak));

static const size_t SIZES[] = {0, 1, 7, 8, 15, 16, 17, 24, 100, 1000, 4095, 4096, 4097, 65536, 131072, 1 << 20, 5 << 20};
enum { SIZE_COUNT = sizeof SIZES / sizeof SIZES[0], KEPT_ERRNO = 4242 };

static int as_it_comes;

// A rule that some allocators break: then the line where is printed, once.
static void rule(int kept, int line) {
    static unsigned char told[1000];
    if (kept) return;
    if (!as_it_comes) check_failed(__FILE__, line, "a rule of the manual");
    if (!told[line]) printf("the rule in line %d is broken\n", line);
    told[line] = 1;
}

#define RULE(condition) rule(condition, __LINE__)

// Hidden from the compiler, which warns of sizes that cannot be had.
static size_t opaque(size_t size) {
    __asm__ volatile("" : "+r"(size));
    return size;
}

static int is_aligned(const void *block, size_t alignment) { return (uintptr_t)block % alignment == 0; }

static void plain_blocks(int turn) {
    void *blocks[SIZE_COUNT];
    for (int at = 0; at < SIZE_COUNT; at++) {
        errno = KEPT_ERRNO;
        blocks[at] = malloc(SIZES[at]);
        // What another allocator does to errno at its first block of a size depends on who allocated before main.
        RULE(errno == KEPT_ERRNO || (as_it_comes && turn == 0));
        CHECK(blocks[at] != NULL);
        CHECK(is_aligned(blocks[at], SIZES[at] < 16 ? 8 : 16));
        CHECK(malloc_usable_size(blocks[at]) >= SIZES[at]);
        paint(blocks[at], SIZES[at], (unsigned)at);
    }
    for (int at = 0; at < SIZE_COUNT; at++) {
        for (int other = 0; other < at; other++) CHECK(blocks[at] != blocks[other]);
        CHECK(is_painted(blocks[at], SIZES[at], (unsigned)at));
        errno = KEPT_ERRNO;
        free(blocks[at]);
        RULE(errno == KEPT_ERRNO);
    }
    CHECK(malloc_usable_size(NULL) == 0);
    errno = KEPT_ERRNO;
    free(NULL);
    RULE(errno == KEPT_ERRNO);
}

static void usable_size_is_usable(void) {
    for (int at = 0; at < SIZE_COUNT; at++) {
        void *block = malloc(SIZES[at]);
        size_t usable = malloc_usable_size(block);
        paint(block, usable, 9);
        CHECK(is_painted(block, usable, 9));
        free(block);
    }
}

static void zeroed_blocks(void) {
    for (int at = 0; at < SIZE_COUNT; at++) {
        for (int turn = 0; turn < 3; turn++) {
            errno = KEPT_ERRNO;
            unsigned char *block = calloc(SIZES[at], turn + 1u);
            RULE(errno == KEPT_ERRNO);
            CHECK(block != NULL);
            size_t size = SIZES[at] * (turn + 1u);
            CHECK(size == 0 || (block[0] == 0 && memcmp(block, block + 1, size - 1) == 0));
            paint(block, size, 77);
            free(block);
        }
    }
    CHECK(calloc(0, 0) != NULL);
    size_t half = opaque(SIZE_MAX / 2 + 1);
    errno = 0;
    CHECK(calloc(half, 2) == NULL);
    printf("calloc overflow: errno %s\n", errno == ENOMEM ? "ENOMEM" : errno == 0 ? "0" : "other");
    errno = 0;
    CHECK(calloc(opaque(SIZE_MAX), opaque(SIZE_MAX)) == NULL);
    errno = 0;
    CHECK(calloc(2, half) == NULL);
}

static void grown_and_shrunk_blocks(void) {
    errno = KEPT_ERRNO;
    void *block = realloc(NULL, 10);
    RULE(errno == KEPT_ERRNO);
    CHECK(block != NULL);
    size_t size = 10;
    paint(block, size, 3);
    unsigned seed = 5;
    for (int turn = 0; turn < 2000; turn++) {
        size_t wanted = 1 + next_random(&seed) % (turn % 50 == 0 ? 1u << 20 : 5000u);
        errno = KEPT_ERRNO;
        void *moved = realloc(block, wanted);
        RULE(errno == KEPT_ERRNO);
        CHECK(moved != NULL);
        CHECK(is_painted(moved, wanted < size ? wanted : size, 3));
        block = moved;
        size = wanted;
        paint(block, size, 3);
    }
    // A realloc that fails leaves the block as it was.
    errno = 0;
    void *failed = realloc(block, opaque((size_t)PTRDIFF_MAX));
    RULE(errno == ENOMEM);
    CHECK(failed == NULL);
    CHECK(is_painted(block, size, 3));
    errno = 0;
    failed = reallocarray(block, opaque(SIZE_MAX / 2 + 1), 2);
    RULE(errno == ENOMEM);
    CHECK(failed == NULL);
    CHECK(is_painted(block, size, 3));
    void *tripled = reallocarray(block, size, 3);
    CHECK(tripled != NULL && is_painted(tripled, size, 3));
    paint(tripled, size * 3, 4);
    CHECK(malloc_usable_size(tripled) >= size * 3);
    free(tripled);
    void *fresh = reallocarray(NULL, 12, 12);
    CHECK(fresh != NULL);
    free(fresh);
}

static void shrunk_to_nothing(void) {
    void *block = malloc(100);
    KEEP(block);
    errno = 0;
    void *rest = realloc(block, opaque(0));
    printf("realloc to 0: %s, errno %d\n", rest ? "a block" : "NULL", errno);
    free(rest);
    rest = realloc(NULL, opaque(0));
    CHECK(rest != NULL);
    free(rest);
    rest = reallocarray(malloc(8), opaque(0), 8);
    printf("reallocarray to 0: %s\n", rest ? "a block" : "NULL");
    free(rest);
}

static void aligned_blocks(void) {
    for (size_t alignment = 16; alignment <= 65536; alignment *= 2) {
        for (int at = 0; at < SIZE_COUNT; at++) {
            size_t size = SIZES[at];
            void *blocks[3] = {NULL, NULL, NULL};
            errno = KEPT_ERRNO;
            CHECK(posix_memalign(&blocks[0], alignment, size) == 0);
            RULE(errno == KEPT_ERRNO);
            blocks[1] = aligned_alloc(alignment, size);
            blocks[2] = memalign(alignment, size);
            RULE(errno == KEPT_ERRNO);
            for (unsigned which = 0; which < 3; which++) {
                CHECK(size == 0 || blocks[which] != NULL);
                CHECK(size == 0 || is_aligned(blocks[which], alignment));
                CHECK(malloc_usable_size(blocks[which]) >= size);
                paint(blocks[which], size, which);
            }
            for (unsigned which = 0; which < 3; which++) CHECK(is_painted(blocks[which], size, which));
            // Aligned blocks may be resized and freed like others.
            blocks[1] = realloc(blocks[1], size * 2 + 1);
            CHECK(blocks[1] != NULL && is_painted(blocks[1], size, 1));
            for (int which = 0; which < 3; which++) {
                errno = KEPT_ERRNO;
                free(blocks[which]);
                RULE(errno == KEPT_ERRNO);
            }
        }
    }
}

static void wrong_alignments(void) {
    const size_t wrong[] = {0, 1, 2, 4, 3, 12, 24, 4095, sizeof(void *) * 3};
    for (size_t at = 0; at < sizeof wrong / sizeof wrong[0]; at++) {
        void *block = (void *)&block;
        errno = KEPT_ERRNO;
        CHECK(posix_memalign(&block, opaque(wrong[at]), 64) == EINVAL);
        CHECK(block == (void *)&block);
        RULE(errno == KEPT_ERRNO);
    }
    void *block = (void *)&block;
    CHECK(posix_memalign(&block, 64, opaque((size_t)PTRDIFF_MAX)) == ENOMEM);
    CHECK(block == (void *)&block);
    errno = 0;
    block = aligned_alloc(opaque(24), 48);
    printf("aligned_alloc of alignment 24: %s, errno %d\n", block ? "a block" : "NULL", errno);
    free(block);
    errno = 0;
    CHECK(aligned_alloc(64, opaque((size_t)PTRDIFF_MAX)) == NULL);
    RULE(errno == ENOMEM);
    errno = 0;
    CHECK(memalign(64, opaque((size_t)PTRDIFF_MAX)) == NULL);
    RULE(errno == ENOMEM);
}

static void page_blocks(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int at = 0; at < SIZE_COUNT; at++) {
        void *block = valloc(SIZES[at]);
        CHECK(block != NULL && is_aligned(block, page));
        CHECK(malloc_usable_size(block) >= SIZES[at]);
        paint(block, SIZES[at], 8);
        free(block);
        if (as_it_comes) continue;
        block = pvalloc(SIZES[at]);
        CHECK(block != NULL && is_aligned(block, page));
        size_t rounded = (SIZES[at] + page - 1) / page * page;
        CHECK(malloc_usable_size(block) >= rounded);
        paint(block, rounded, 8);
        block = realloc(block, rounded + 1);
        CHECK(block != NULL && is_painted(block, rounded, 8));
        free(block);
    }
    errno = 0;
    CHECK(valloc(opaque((size_t)PTRDIFF_MAX)) == NULL);
    RULE(errno == ENOMEM);
    errno = 0;
    CHECK(as_it_comes || (pvalloc(opaque((size_t)PTRDIFF_MAX)) == NULL && errno == ENOMEM));
}

static void sizes_that_cannot_be_had(void) {
    const size_t huge[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1, SIZE_MAX / 2 - 64};
    for (size_t at = 0; at < sizeof huge / sizeof huge[0]; at++) {
        errno = 0;
        CHECK(malloc(opaque(huge[at])) == NULL);
        RULE(errno == ENOMEM);
        errno = 0;
        CHECK(calloc(opaque(huge[at]), 1) == NULL);
        RULE(errno == ENOMEM);
        errno = 0;
        CHECK(realloc(NULL, opaque(huge[at])) == NULL);
        RULE(errno == ENOMEM);
    }
}

static void frees_that_name_the_size(void) {
    for (int at = 0; at < SIZE_COUNT; at++) {
        void *block = malloc(SIZES[at]);
        errno = KEPT_ERRNO;
        free_sized ? free_sized(block, SIZES[at]) : free(block);
        block = aligned_alloc(64, (SIZES[at] + 63) / 64 * 64);
        free_aligned_sized ? free_aligned_sized(block, 64, (SIZES[at] + 63) / 64 * 64) : free(block);
        RULE(errno == KEPT_ERRNO);
    }
}

int main(int count, char **words) {
    as_it_comes = count > 1 && strcmp(words[1], "--as-it-comes") == 0;
    for (int turn = 0; turn < 3; turn++) {
        plain_blocks(turn);
        usable_size_is_usable();
        zeroed_blocks();
        grown_and_shrunk_blocks();
        shrunk_to_nothing();
        aligned_blocks();
        wrong_alignments();
        page_blocks();
        sizes_that_cannot_be_had();
        frees_that_name_the_size();
    }
    puts("every function did what its manual says");
    return 0;
}
