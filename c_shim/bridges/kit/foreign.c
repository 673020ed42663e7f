/* See foreign.h. */
#define _GNU_SOURCE
#include "kit/foreign.h"

#include <sys/uio.h>

bool foreign_copy(uintptr_t from, void *to, size_t bytes)
{
    struct iovec piece = {(void *)from, bytes};
    return shim_services.copy_foreign(to, bytes, &piece, 1) == bytes;
}

/* ---- lines ---- */

static uint32_t place_of(uintptr_t thread)
{
    return (thread >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 60 & (FOREIGN_THREADS - 1);
}

/* The place in `places` for a line. */
static uint16_t *hint_of(struct foreign_lines *lines, uintptr_t address)
{
    enum { PLACES = sizeof lines->places / sizeof lines->places[0] };
    return &lines->places[(address / FOREIGN_LINE_BYTES * UINT64_C(0x9e3779b97f4a7c15) >> 32) % PLACES];
}

void foreign_lines_begin(struct foreign_lines *lines, uintptr_t thread)
{
    struct iovec *pieces = lines->pieces;
    size_t used = 0;
    uint32_t place = place_of(thread), count = lines->last[place].thread == thread ? lines->last[place].count : 0;
    lines->count = 0;
    memset(lines->used, 0, sizeof lines->used);
    if (count == 0)
        return;
    /* Lines that lie side by side are one piece: the kernel takes its time for each piece and page. */
    for (uint32_t i = 0; i < count; i++) {
        lines->addresses[i] = lines->last[place].addresses[i];
        *hint_of(lines, lines->addresses[i]) = (uint16_t)i;
        if (i == 0 || lines->addresses[i] != lines->addresses[i - 1] + FOREIGN_LINE_BYTES)
            pieces[used++] = (struct iovec){(void *)lines->addresses[i], 0};
        pieces[used - 1].iov_len += FOREIGN_LINE_BYTES;
    }
    /* Lines after one that is gone are fetched when they are needed. */
    lines->count = (uint32_t)(shim_services.copy_foreign(lines->bytes, sizeof lines->bytes, pieces, used) / FOREIGN_LINE_BYTES);
}

void foreign_lines_end(struct foreign_lines *lines, uintptr_t thread)
{
    uint32_t place = place_of(thread), count = 0;
    uintptr_t *last = lines->last[place].addresses;
    for (uint32_t i = 0; i < lines->count; i++) {
        if (!lines->used[i])
            continue;
        /* Sorts the entries, which are nearly sorted already. */
        uint32_t at = count++;
        for (; at > 0 && last[at - 1] > lines->addresses[i]; at--)
            last[at] = last[at - 1];
        last[at] = lines->addresses[i];
    }
    lines->last[place].thread = thread;
    lines->last[place].count = count;
}

/* The copy of a line; NULL: the line is gone, or there is no room. */
static const uint8_t *line_at(struct foreign_lines *lines, uintptr_t address, bool *is_full)
{
    uint16_t *hint = hint_of(lines, address);
    uint32_t at = *hint;
    if (at >= lines->count || lines->addresses[at] != address) {
        at = 0;
        while (at < lines->count && lines->addresses[at] != address)
            at++;
        *hint = (uint16_t)at;
    }
    *is_full = at == FOREIGN_LINES;
    if (*is_full)
        return NULL;
    if (at == lines->count) {
        if (!foreign_copy(address, lines->bytes[at], FOREIGN_LINE_BYTES))
            return NULL;
        lines->addresses[lines->count++] = address;
    }
    lines->used[at] = true;
    return lines->bytes[at];
}

/* ---- readers ---- */

void foreign_reader_begin(struct foreign_reader *reader, struct foreign_lines *lines)
{
    *reader = (struct foreign_reader){.lines = lines};
    /* Owned: the part of the calling thread's stack that was found readable before; it stays mapped while the thread lives. */
    shim_services.own_stack(&reader->owned[0].start, &reader->owned[0].end);
}

bool foreign_read_copied(struct foreign_reader *reader, uintptr_t from, void *to, size_t bytes)
{
    uint8_t *next = to;
    if (bytes > UINTPTR_MAX - from)
        return false;
    while (reader->lines != NULL && bytes > 0) {
        size_t into = from % FOREIGN_LINE_BYTES, part = FOREIGN_LINE_BYTES - into;
        bool is_full;
        const uint8_t *line = line_at(reader->lines, from - into, &is_full);
        if (is_full)
            break;
        if (line == NULL)
            return false;
        if (part > bytes)
            part = bytes;
        memcpy(next, line + into, part);
        next += part;
        from += part;
        bytes -= part;
    }
    return bytes == 0 || foreign_copy(from, next, bytes);
}

void foreign_text(struct foreign_reader *reader, uintptr_t from, char *to, size_t room)
{
    size_t length = 0;
    while (from != 0 && length < room - 1) {
        /* What follows the text may be gone: a part ends where a page may end. */
        size_t part = 64 - (from + length) % 64;
        if (part > room - 1 - length)
            part = room - 1 - length;
        if (!foreign_read(reader, from + length, to + length, part))
            break;
        const char *end = memchr(to + length, 0, part);
        if (end != NULL) {
            length = (size_t)(end - to);
            break;
        }
        length += part;
    }
    to[length] = 0;
}
