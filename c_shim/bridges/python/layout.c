/* Offsets are those of each release's headers (3.8 to 3.13, 64-bit, with the interpreter's lock). */
#include "layout.h"

#include <stdio.h>

/* Py_TPFLAGS_MANAGED_DICT, and Py_TPFLAGS_MANAGED_WEAKREF. */
enum { HAS_DICT = 1 << 4, HAS_WEAKREFS = 1 << 3 };

static const struct python_layout layouts[] = {
    {8, 24, -1, 32, 24, 104, 0, 0, 104, 112, 40, 0, 1, 48, 72, 864, 0, 32, 0, 0},
    {9, 24, -1, 32, 24, 104, 0, 0, 104, 112, 40, 0, 1, 48, 72, 856, 0, 32, 0, 0},
    {10, 24, -1, 32, 24, 96, 0, 0, 104, 112, 40, 0, 2, 48, 72, 864, 0, 32, 0, 0},
    {11, 56, 8, 32, 48, 56, 68, 69, 112, 128, 72, 184, 0, 48, 72, 864, HAS_DICT, 360, 296, 312},
    {12, 56, 0, 0, 8, 56, 0, 70, 112, 128, 68, 192, 0, 40, 56, 872, HAS_DICT | HAS_WEAKREFS, 288, 232, 248},
    {13, 72, -1, 0, 8, 56, 0, 70, 112, 128, 68, 200, 0, 40, 56, 872, HAS_DICT | HAS_WEAKREFS, 256, 232, 248},
};

const struct python_layout *python_layout_of(const char *version)
{
    int major = 0, minor = 0;
    if (sscanf(version, "%d.%d", &major, &minor) != 2 || major != 3)
        return NULL;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        if (layouts[i].minor == minor)
            return &layouts[i];
    }
    return NULL;
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
    uint8_t header[HEADER], part[256];
    size_t length, used = 0;
    uint32_t state;
    text[0] = 0;
    if (string == 0 || !read_at(reader, string, header, sizeof header))
        return;
    memcpy(&length, header + LENGTH, sizeof length);
    memcpy(&state, header + STATE, sizeof state);
    /* Bit field of the state: interned, kind, compact, ascii; 3.11 and before have two bits of interned too. */
    uint32_t kind = state >> 2 & 7;
    bool is_compact = state >> 5 & 1, is_ascii = state >> 6 & 1;
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
