/* Offsets are those of each release's headers (3.8 to 3.12, 64-bit). */
#include "layout.h"

#include <stdio.h>

/* The first minor version that describes itself. */
enum { DESCRIBES_ITSELF = 13 };

static const struct python_layout layouts[] = {
    {8, 24, -1, 32, 24, 104, 0, 0, 104, 112, 40, 0, 1, 48, 72, 864, 0, 32, 0, 0, 112, 136, 0, 0, 0, 0, 0, false},
    {9, 24, -1, 32, 24, 104, 0, 0, 104, 112, 40, 0, 1, 48, 72, 856, 0, 32, 0, 0, 112, 136, 0, 0, 0, 0, 0, false},
    {10, 24, -1, 32, 24, 96, 0, 0, 104, 112, 40, 0, 2, 48, 72, 864, 0, 32, 0, 0, 112, 136, 0, 0, 0, 0, 0, false},
    {11, 56, 8, 32, 48, 56, 68, 69, 112, 128, 72, 184, 0, 48, 72, 864, PYTHON_HAS_DICT, 360, 296, 312, 72, 136, 0, 0, 0, 0, 0, false},
    {12, 56, 0, 0, 8, 56, 0, 70, 112, 128, 68, 192, 0, 40, 56, 872, PYTHON_HAS_DICT | PYTHON_HAS_WEAKREFS, 288, 232, 248, 72, 136, 0, 0, 0, 0, 0, false},
};
static struct python_layout described;

const struct python_layout *python_layout_of(const struct python_identity *identity)
{
    int major = 0, minor = 0;
    if (sscanf(identity->version, "%d.%d", &major, &minor) != 2 || major != 3)
        return NULL;
    if (minor >= DESCRIBES_ITSELF)
        return python_offsets_read(identity, minor, &described) ? &described : NULL;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        if (layouts[i].minor == minor)
            return &layouts[i];
    }
    return NULL;
}

/* An object of a build without the interpreter's lock is counted by its own thread (32 bits, after one word and a half) and by
 * all others (a word above two bits). From 3.14 on the upper 16 bits of the word are flags, and immortal objects have the
 * largest counts of 32 bits. */
bool python_may_be_alive(const struct python_layout *layout, const uint8_t *header)
{
    enum { OWN_COUNT = 12, SHARED_COUNT = 16, SHARED_SHIFT = 2, MOST_REFERENCES_SHIFT = 40 };
    if (layout->is_free_threaded)
        return python_half_word_in(header, OWN_COUNT) != 0 || python_word_in(header, SHARED_COUNT) >> SHARED_SHIFT != 0;
    uint64_t references = python_word_in(header, 0);
    if (layout->minor >= 14)
        references &= (UINT64_C(1) << 48) - 1;
    return references != 0 && references >> MOST_REFERENCES_SHIFT == 0;
}

static size_t put_utf8(char *text, uint32_t character)
{
    if (character < 0x80) {
        text[0] = (char)character;
        return 1;
    }
    size_t more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
    static const unsigned char marks[] = {0, 0xc0, 0xe0, 0xf0};
    for (size_t i = more; i > 0; i--) {
        text[i] = (char)(0x80 | (character & 0x3f));
        character >>= 6;
    }
    text[0] = (char)(marks[more] | character);
    return more + 1;
}

static bool read_at(struct foreign_reader *reader, uintptr_t from, void *to, size_t bytes)
{
    if (reader != NULL)
        return foreign_read(reader, from, to, bytes);
    memcpy(to, (const void *)from, bytes);
    return true;
}

void python_copy_text(const struct python_layout *layout, struct foreign_reader *reader, uintptr_t string, char *text,
                      size_t room)
{
    enum { LENGTH = 16, STATE = 32, HEADER = 36 };
    uint8_t header[HEADER + PYTHON_LARGER_HEADER], part[256];
    size_t length, used = 0;
    uint32_t state;
    text[0] = 0;
    if (string == 0 || !read_at(reader, string, header, python_in_object(layout, HEADER)))
        return;
    length = python_word_in(header, python_in_object(layout, LENGTH));
    state = python_half_word_in(header, python_in_object(layout, STATE));
    /* Bit field of the state: interned (two bits; a byte of its own from 3.14 on without the interpreter's lock), kind, compact,
     * ascii. */
    state >>= layout->is_free_threaded && layout->minor >= 14 ? 8 : 2;
    uint32_t kind = state & 7;
    bool is_compact = state >> 3 & 1, is_ascii = state >> 4 & 1;
    if (!is_compact || (kind != 1 && kind != 2 && kind != 4))
        return;
    uintptr_t at = string + (is_ascii ? layout->ascii : layout->compact);
    while (length > 0 && used + 5 < room) {
        size_t count = sizeof part / kind, fitting = room - 5 - used;
        count = count < length ? count : length;
        count = count < fitting ? count : fitting; /* a character takes a byte at least */
        if (!read_at(reader, at, part, count * kind))
            break;
        for (size_t i = 0; i < count && used + 5 < room; i++) {
            uint32_t character = 0;
            memcpy(&character, part + i * kind, kind);
            used += put_utf8(text + used, character);
        }
        at += count * kind;
        length -= count;
    }
    text[used] = 0;
}
