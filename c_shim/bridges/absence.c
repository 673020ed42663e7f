/* See absence.h. */
#define _GNU_SOURCE
#include "absence.h"

#include <stdint.h>

/* What the table begins with; the words of its filter follow. */
struct table {
    uint32_t buckets, first_symbol, filter_words, filter_shift;
};

static const struct table *table_of(const struct dl_phdr_info *object)
{
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        uintptr_t at = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        for (const ElfW(Dyn) *entry = (const ElfW(Dyn) *)at; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag != DT_GNU_HASH)
                continue;
            /* glibc adds the object's base where it can write; musl does not, and nobody does it for the vDSO. */
            uintptr_t table = entry->d_un.d_ptr;
            return (const struct table *)(table < object->dlpi_addr ? table + object->dlpi_addr : table);
        }
    }
    return NULL;
}

static int read_object(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct absence *absence = argument;
    (void)size;
    const struct table *table = table_of(object);
    absence->is_complete = table != NULL && table->filter_words != 0 && absence->count < ABSENCE_OBJECTS;
    if (absence->is_complete)
        absence->filters[absence->count++] = (struct absence_filter){
            .words = (const ElfW(Addr) *)(table + 1), .count = table->filter_words, .shift = table->filter_shift};
    return !absence->is_complete;
}

void absence_read(struct absence *absence)
{
    absence->count = 0;
    absence->is_complete = false;
    dl_iterate_phdr(read_object, absence);
}

bool absence_of(const struct absence *absence, const char *symbol)
{
    const uint32_t bits = 8 * sizeof(ElfW(Addr));
    uint32_t hash = 5381;
    for (const char *byte = symbol; *byte != 0; byte++)
        hash = hash * 33 + (unsigned char)*byte;
    for (size_t i = 0; i < absence->count; i++) {
        const struct absence_filter *filter = &absence->filters[i];
        ElfW(Addr) word = filter->words[hash / bits % filter->count];
        if ((word >> hash % bits & word >> (hash >> filter->shift) % bits & 1) != 0)
            return false;
    }
    return absence->is_complete;
}
