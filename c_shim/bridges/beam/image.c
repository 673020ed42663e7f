/* Searches the executable of BEAM for its tables. From OTP 29 on it exports only what drivers and NIFs call, so that tables
 * are found by what is in them. */
#define _GNU_SOURCE
#include "beam.h"

#include <link.h>
#include <string.h>

enum { SEGMENTS = 8 };

struct segment {
    uintptr_t start, end;
    uint32_t flags; /* PF_R, PF_W, PF_X */
};

static struct image {
    uintptr_t address; /* of the function that was looked for */
    struct segment segments[SEGMENTS];
    size_t count;
} image;

static int look_at(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct image *found = argument;
    bool is_it = false;
    (void)size;
    found->count = 0;
    for (size_t i = 0; i < object->dlpi_phnum && found->count < SEGMENTS; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        if (header->p_type != PT_LOAD)
            continue;
        uintptr_t start = object->dlpi_addr + header->p_vaddr;
        found->segments[found->count++] = (struct segment){start, start + header->p_memsz, header->p_flags};
        is_it |= found->address >= start && found->address < start + header->p_memsz;
    }
    return is_it;
}

bool beam_image_find(const void *function)
{
    image.address = (uintptr_t)function;
    return dl_iterate_phdr(look_at, &image) != 0;
}

static const struct segment *segment_of(uintptr_t address)
{
    for (size_t i = 0; i < image.count; i++)
        if (address >= image.segments[i].start && address < image.segments[i].end)
            return &image.segments[i];
    return NULL;
}

bool beam_image_search(beam_visitor *visit, void *argument)
{
    for (size_t i = 0; i < image.count; i++) {
        const struct segment *segment = &image.segments[i];
        if ((segment->flags & PF_W) == 0)
            continue;
        const uintptr_t *place = (const uintptr_t *)((segment->start + 7) & ~(uintptr_t)7);
        for (size_t words = (segment->end - (uintptr_t)place) / sizeof *place; words > 0; place++, words--)
            if (visit(argument, place, words))
                return true;
    }
    return false;
}

bool beam_image_is_code(uintptr_t address)
{
    const struct segment *segment = segment_of(address);
    return segment != NULL && (segment->flags & PF_X) != 0;
}

void beam_image_code(uintptr_t *start, uintptr_t *end)
{
    const struct segment *segment = segment_of(image.address);
    *start = segment->start;
    *end = segment->end;
}

const char *beam_image_text(uintptr_t address)
{
    const struct segment *segment = segment_of(address);
    if (segment == NULL || (segment->flags & PF_R) == 0)
        return NULL;
    size_t room = segment->end - address;
    const char *text = (const char *)address;
    return memchr(text, 0, room < BEAM_MOST_TEXT ? room : BEAM_MOST_TEXT) == NULL ? NULL : text;
}
