/* See absence.h. */
#define _GNU_SOURCE
#include "absence.h"

#include <link.h>

/* What the table begins with; the words of its filter (Bloom) follow. */
struct table {
    uint32_t buckets, first_symbol, filter_words, filter_shift;
};

struct search {
    uint32_t hashes[ABSENCE_SYMBOLS];
    /* Symbols that are asked for, and those that an object may define. */
    uint64_t asked, found;
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

static bool may_define(const struct table *table, uint32_t hash)
{
    const uint32_t bits = 8 * sizeof(ElfW(Addr));
    const ElfW(Addr) *words = (const ElfW(Addr) *)(table + 1);
    ElfW(Addr) word = words[hash / bits % table->filter_words];
    return (word >> hash % bits & word >> (hash >> table->filter_shift) % bits & 1) != 0;
}

/* Until all have been found, or the objects end. */
static int search_in(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct search *search = argument;
    (void)size;
    const struct table *table = table_of(object);
    bool is_known = table != NULL && table->filter_words != 0;
    for (uint64_t left = search->asked & ~search->found; left != 0; left &= left - 1) {
        int index = __builtin_ctzll(left);
        if (!is_known || may_define(table, search->hashes[index]))
            search->found |= UINT64_C(1) << index;
    }
    return search->found == search->asked;
}

uint64_t absence_exceptions(const char *const *symbols, size_t count)
{
    struct search search = {.asked = 0};
    for (size_t i = 0; i < count; i++) {
        if (symbols[i] == NULL)
            continue;
        uint32_t hash = 5381;
        for (const char *byte = symbols[i]; *byte != 0; byte++)
            hash = hash * 33 + (unsigned char)*byte;
        search.hashes[i] = hash;
        search.asked |= UINT64_C(1) << i;
    }
    dl_iterate_phdr(search_in, &search);
    return search.found;
}
