/* The file of a library, and the instructions in it. Every read is within the file, whatever is in it. */
#ifndef ALLOCSAMPLE_BRIDGES_PYPY_IMAGE_H
#define ALLOCSAMPLE_BRIDGES_PYPY_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* All searches look at least so many bytes ahead that an instruction may be read where one is looked for. */
enum { IMAGE_MARGIN = 128, IMAGE_SEGMENTS = 16 };

struct segment {
    uint64_t address, offset, bytes;
    bool is_writable;
};

struct function {
    uint64_t start, end;
};

struct image {
    const uint8_t *file;
    size_t length;
    struct segment segments[IMAGE_SEGMENTS];
    size_t segment_count;
    const struct segment *code;
    const uint8_t *functions; /* pairs of 32 bits: a start, from functions_at on, and what we do not need */
    uint64_t functions_at;
    size_t function_count;
    uint64_t dynamic, dynamic_bytes, notes, notes_bytes, thread_bytes;
};

/* False: it is not a library for x86-64 with a table for unwinders. */
__attribute__((visibility("hidden"))) bool pypy_image_read(struct image *image, const uint8_t *file, size_t length);

/* Returns the bytes at an address; NULL if they are not all in one segment. */
__attribute__((visibility("hidden"))) const uint8_t *pypy_image_at(const struct image *image, uint64_t address, uint64_t bytes);

/* The function that an address is in, by the table that unwinders search; 0 to 0 if there is none, or less than the margin behind
 * it. */
__attribute__((visibility("hidden"))) struct function pypy_image_function(const struct image *image, uint64_t address);

/* The value of an exported symbol, or 0. */
__attribute__((visibility("hidden"))) uint64_t pypy_image_exported(const struct image *image, const char *name);

/* The build id, if it has 20 bytes. */
__attribute__((visibility("hidden"))) void pypy_image_id(const struct image *image, uint8_t id[20]);

static inline int32_t int_at(const uint8_t *bytes)
{
    int32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static inline uint64_t word_at(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

#endif
