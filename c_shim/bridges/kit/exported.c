/* See exported.h. */
#define _GNU_SOURCE
#include "kit/exported.h"
#include "kit/symbols.h"

#include <link.h>

/* Of the object's dynamic section. */
struct dynamic_symbols {
    const ElfW(Sym) *symbols;
    const char *names;
    size_t count;
};

static uintptr_t bias_of(uintptr_t start, const ElfW(Phdr) *segments, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (segments[i].p_type == PT_LOAD && segments[i].p_offset == 0)
            return start - segments[i].p_vaddr;
    return start;
}

static struct dynamic_symbols symbols_of(uintptr_t start)
{
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)start;
    const ElfW(Phdr) *segments = (const ElfW(Phdr) *)(start + header->e_phoff);
    uintptr_t bias = bias_of(start, segments, header->e_phnum);
    const ElfW(Dyn) *entry = NULL;
    struct dynamic_symbols found = {0};
    for (size_t i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(bias + segments[i].p_vaddr);
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        /* glibc's loader has relocated these words in place, except in objects whose dynamic section is read-only. */
        uintptr_t value = entry->d_un.d_ptr;
        const void *place = (const void *)(value < bias ? value + bias : value);
        if (entry->d_tag == DT_SYMTAB)
            found.symbols = place;
        else if (entry->d_tag == DT_STRTAB)
            found.names = place;
        else if (entry->d_tag == DT_GNU_HASH)
            found.count = symbols_in_table(place);
    }
    if (found.symbols == NULL || found.names == NULL)
        found.count = 0;
    return found;
}

size_t exported_functions(uintptr_t start, exported_rule *is_wanted, const char **name)
{
    struct dynamic_symbols all = symbols_of(start);
    size_t count = 0;
    for (size_t i = 0; i < all.count; i++) {
        const ElfW(Sym) *symbol = &all.symbols[i];
        if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC ||
            !is_wanted(all.names + symbol->st_name))
            continue;
        *name = all.names + symbol->st_name;
        count++;
    }
    return count;
}
