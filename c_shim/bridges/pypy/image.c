/* See image.h. */
#define _GNU_SOURCE
#include "image.h"

#include <elf.h>

enum { FUNCTION_MOST = 1 << 16 };

static const uint8_t *at_offset(const struct image *image, uint64_t offset, uint64_t bytes)
{
    return offset <= image->length && bytes <= image->length - offset ? image->file + offset : NULL;
}

const uint8_t *pypy_image_at(const struct image *image, uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < image->segment_count; i++) {
        const struct segment *segment = &image->segments[i];
        uint64_t into = address - segment->address;
        if (address >= segment->address && into <= segment->bytes && bytes <= segment->bytes - into)
            return image->file + segment->offset + into;
    }
    return NULL;
}

bool pypy_image_read(struct image *image, const uint8_t *file, size_t length)
{
    Elf64_Ehdr header;
    *image = (struct image){.file = file, .length = length};
    const uint8_t *start = at_offset(image, 0, sizeof header);
    if (start == NULL)
        return false;
    memcpy(&header, start, sizeof header);
    if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != EM_X86_64)
        return false;
    uint64_t frames = 0;
    for (size_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment;
        const uint8_t *from = at_offset(image, header.e_phoff + i * sizeof segment, sizeof segment);
        if (from == NULL || header.e_phoff > image->length)
            return false;
        memcpy(&segment, from, sizeof segment);
        if (segment.p_type == PT_LOAD && image->segment_count < IMAGE_SEGMENTS) {
            /* An address is an offset of 32 bits in our table. */
            if (at_offset(image, segment.p_offset, segment.p_filesz) == NULL ||
                segment.p_vaddr > INT32_MAX || segment.p_filesz > INT32_MAX)
                return false;
            struct segment *to = &image->segments[image->segment_count++];
            *to = (struct segment){segment.p_vaddr, segment.p_offset, segment.p_filesz, (segment.p_flags & PF_W) != 0};
            if ((segment.p_flags & PF_X) != 0 && (image->code == NULL || to->bytes > image->code->bytes))
                image->code = to;
        } else if (segment.p_type == PT_GNU_EH_FRAME) {
            frames = segment.p_vaddr;
        } else if (segment.p_type == PT_DYNAMIC) {
            image->dynamic = segment.p_vaddr;
            image->dynamic_bytes = segment.p_filesz;
        } else if (segment.p_type == PT_TLS) {
            image->thread_bytes = segment.p_memsz;
        } else if (segment.p_type == PT_NOTE && image->notes == 0) {
            image->notes = segment.p_vaddr;
            image->notes_bytes = segment.p_filesz;
        }
    }
    /* Version 1; the count has 4 bytes; the table has 4 bytes, from here on. */
    const uint8_t *table = pypy_image_at(image, frames, 12);
    if (image->code == NULL || table == NULL || table[0] != 1 || table[2] != 0x03 || table[3] != 0x3b)
        return false;
    image->function_count = (uint32_t)int_at(table + 8);
    image->functions = pypy_image_at(image, frames + 12, image->function_count * UINT64_C(8));
    image->functions_at = frames;
    return image->functions != NULL && image->function_count > 0;
}

static uint64_t function_start(const struct image *image, size_t index)
{
    return image->functions_at + (uint64_t)(int64_t)int_at(image->functions + index * 8);
}

struct function pypy_image_function(const struct image *image, uint64_t address)
{
    size_t low = 0, high = image->function_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (function_start(image, middle) <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return (struct function){0};
    struct function found = {.start = function_start(image, low - 1)};
    found.end = low < image->function_count ? function_start(image, low) : found.start;
    if (found.end < found.start || found.end - found.start > FUNCTION_MOST ||
        pypy_image_at(image, found.start, found.end - found.start + IMAGE_MARGIN) == NULL)
        return (struct function){0};
    return found;
}

/* The names follow the symbols, as linkers put them. */
uint64_t pypy_image_exported(const struct image *image, const char *name)
{
    uint64_t symbols = 0, names = 0, names_bytes = 0;
    for (uint64_t into = 0; into + sizeof(Elf64_Dyn) <= image->dynamic_bytes; into += sizeof(Elf64_Dyn)) {
        Elf64_Dyn entry;
        const uint8_t *from = pypy_image_at(image, image->dynamic + into, sizeof entry);
        if (from == NULL)
            return 0;
        memcpy(&entry, from, sizeof entry);
        if (entry.d_tag == DT_SYMTAB)
            symbols = entry.d_un.d_ptr;
        else if (entry.d_tag == DT_STRTAB)
            names = entry.d_un.d_ptr;
        else if (entry.d_tag == DT_STRSZ)
            names_bytes = entry.d_un.d_val;
    }
    const char *text = (const char *)pypy_image_at(image, names, names_bytes);
    size_t length = strlen(name) + 1;
    for (uint64_t from = symbols; text != NULL && from + sizeof(Elf64_Sym) <= names; from += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        const uint8_t *bytes = pypy_image_at(image, from, sizeof symbol);
        if (bytes == NULL)
            return 0;
        memcpy(&symbol, bytes, sizeof symbol);
        if (symbol.st_name < names_bytes && length <= names_bytes - symbol.st_name &&
            memcmp(text + symbol.st_name, name, length) == 0)
            return symbol.st_value;
    }
    return 0;
}

void pypy_image_id(const struct image *image, uint8_t id[20])
{
    const uint8_t *notes = pypy_image_at(image, image->notes, image->notes_bytes);
    for (uint64_t into = 0; notes != NULL && image->notes_bytes >= 36 && into <= image->notes_bytes - 36; into += 4) {
        static const uint8_t begins[] = {4, 0, 0, 0, 20, 0, 0, 0, NT_GNU_BUILD_ID, 0, 0, 0, 'G', 'N', 'U', 0};
        if (memcmp(notes + into, begins, sizeof begins) == 0) {
            memcpy(id, notes + into + sizeof begins, 20);
            return;
        }
    }
}
