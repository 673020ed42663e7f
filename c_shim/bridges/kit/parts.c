/* See parts.h. A part has no symbol of its own in a stripped file, but an entry of the table of unwinding information, as every
 * function has. What tells it from another function is that jumps from the known part lead into the middle of it, which tail calls
 * do not. */
#define _GNU_SOURCE
#include "kit/parts.h"

#include <link.h>
#include <string.h>

struct range {
    uintptr_t start, end;
};

/* ---- the table of functions, .eh_frame_hdr ---- */

struct table {
    uintptr_t within;  /* an address in the object */
    uintptr_t address; /* of its table; 0: it has none */
};

static int look_at(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct table *table = argument;
    uintptr_t header = 0;
    bool is_it = false;
    (void)size;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        is_it |= segment->p_type == PT_LOAD && table->within - start < segment->p_memsz;
        if (segment->p_type == PT_GNU_EH_FRAME)
            header = start;
    }
    if (is_it)
        table->address = header;
    return is_it;
}

static uint32_t number_at(uintptr_t address)
{
    uint32_t number;
    memcpy(&number, (const void *)address, sizeof number);
    return number;
}

/* A signed distance from some address. */
static uintptr_t reached_from(uintptr_t from, uintptr_t at)
{
    return from + (uintptr_t)(intptr_t)(int32_t)number_at(at);
}

/* The function or part that holds an address, by the table of its object. Only the encodings that GNU's and LLVM's linkers use
 * are known. */
static bool find_range(uintptr_t table, uintptr_t address, struct range *range)
{
    enum { VERSION = 1, FRAME_ENCODING = 0x1b, COUNT_ENCODING = 0x03, TABLE_ENCODING = 0x3b, COUNT = 8, ROWS = 12, ROW = 8 };
    enum { FRAME_START = 8, FRAME_LENGTH = 12 };
    const uint8_t expected[] = {VERSION, FRAME_ENCODING, COUNT_ENCODING, TABLE_ENCODING};
    if (table == 0 || memcmp((const void *)table, expected, sizeof expected) != 0)
        return false;
    size_t low = 0, high = number_at(table + COUNT);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (reached_from(table, table + ROWS + middle * ROW) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return false;
    uintptr_t row = table + ROWS + (low - 1) * ROW, start = reached_from(table, row), frame = reached_from(table, row + 4);
    /* The description says the same, if it is encoded as expected. */
    if (reached_from(frame + FRAME_START, frame + FRAME_START) != start)
        return false;
    *range = (struct range){start, start + number_at(frame + FRAME_LENGTH)};
    return address < range->end;
}

/* ---- jumps ---- */

/* Where the jump at `at` leads to; 0: there is none, of those that leave a function. */
static uintptr_t target_of(uintptr_t at)
{
#if defined(__x86_64__)
    const uint8_t *code = (const uint8_t *)at;
    if (code[0] == 0xe9)
        return reached_from(at + 5, at + 1);
    if (code[0] == 0x0f && (code[1] & 0xf0) == 0x80)
        return reached_from(at + 6, at + 2);
#else
    (void)at;
#endif
    return 0;
}

#define LONGEST_JUMP 6
/* Bytes that only look like a jump lead anywhere. So many agree on a part. */
#define FEWEST_JUMPS 3
#define CANDIDATES 16

bool parts_elsewhere(uintptr_t start, uintptr_t end, uintptr_t *other_start, uintptr_t *other_end)
{
    struct candidate {
        struct range range;
        uint32_t jumps;
    } candidates[CANDIDATES];
    size_t count = 0;
    struct table table = {.within = start};
    struct range range;
    dl_iterate_phdr(look_at, &table);
    for (uintptr_t at = start; at + LONGEST_JUMP <= end; at++) {
        uintptr_t target = target_of(at);
        bool is_far = target != 0 && (target < start || target >= end);
        if (!is_far || !find_range(table.address, target, &range) || range.start == target || range.start == start)
            continue;
        size_t i = 0;
        while (i < count && candidates[i].range.start != range.start)
            i++;
        if (i < count)
            candidates[i].jumps++;
        else if (count < CANDIDATES)
            candidates[count++] = (struct candidate){range, 1};
    }
    const struct candidate *best = NULL;
    for (size_t i = 0; i < count; i++) {
        if (candidates[i].jumps >= FEWEST_JUMPS && (best == NULL || candidates[i].jumps > best->jumps))
            best = &candidates[i];
    }
    if (best == NULL)
        return false;
    *other_start = best->range.start;
    *other_end = best->range.end;
    return true;
}
