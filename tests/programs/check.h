// What every test program needs: a check that allocates nothing, and blocks whose content tells whose they are.
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

// Keeps the compiler from seeing what becomes of a block, or from turning the call before it into a jump.
#define KEEP(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

// Ends the process with status 99 and one line on stderr; neither allocates nor runs exit handlers.
static inline void check_failed(const char *file, int line, const char *what) {
    char text[512];
    int error = errno;
    int length = snprintf(text, sizeof text, "%s:%d: not so: %s (errno %d)\n", file, line, what, error);
    if (length > 0 && write(2, text, (size_t)length) < 0) _exit(98);
    _exit(99);
}

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))

// A small generator of numbers, the same on every machine.
static inline unsigned next_random(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

// After so many bytes the pattern of a block comes again.
#define PATTERN ((size_t)256)

// Fills a block with a pattern made from `tag`.
static inline void paint(void *block, size_t size, unsigned tag) {
    unsigned char *bytes = (unsigned char *)block;
    for (size_t at = 0; at < size && at < PATTERN; at++) bytes[at] = (unsigned char)(tag + at * 31);
    for (size_t at = PATTERN; at < size; at += PATTERN)
        memcpy(bytes + at, bytes, size - at < PATTERN ? size - at : PATTERN);
}

// Whether the first `size` bytes still hold the pattern of `tag`.
static inline int is_painted(const void *block, size_t size, unsigned tag) {
    const unsigned char *bytes = (const unsigned char *)block;
    for (size_t at = 0; at < size && at < PATTERN; at++)
        if (bytes[at] != (unsigned char)(tag + at * 31)) return 0;
    return size <= PATTERN || memcmp(bytes, bytes + PATTERN, size - PATTERN) == 0;
}

// Allocates, checks and frees `count` blocks of changing sizes up to `most` bytes.
static inline void churn(unsigned count, size_t most, unsigned seed) {
    enum { HELD = 32 };
    void *held[HELD] = {0};
    size_t sizes[HELD] = {0};
    for (unsigned turn = 0; turn < count; turn++) {
        unsigned slot = next_random(&seed) % HELD;
        if (held[slot]) {
            CHECK(is_painted(held[slot], sizes[slot], slot));
            free(held[slot]);
        }
        sizes[slot] = 1 + next_random(&seed) % most;
        held[slot] = malloc(sizes[slot]);
        CHECK(held[slot] != NULL);
        paint(held[slot], sizes[slot], slot);
    }
    for (unsigned slot = 0; slot < HELD; slot++) {
        if (!held[slot]) continue;
        CHECK(is_painted(held[slot], sizes[slot], slot));
        free(held[slot]);
    }
}

#endif
