/* See symbols.h. */
#define _GNU_SOURCE
#include "kit/symbols.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

/* musl does not have it. */
#pragma weak dladdr1

static void *find_global(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Returns the number of symbols found before the first missing one. */
static size_t found_of(const struct symbol *symbols, size_t count, void *(*find)(const char *name))
{
    for (size_t i = 0; i < count; i++) {
        void *found = find(symbols[i].name);
        if (found == NULL)
            return i; /* most processes end here, at the first */
        memcpy(symbols[i].slot, &found, sizeof found);
    }
    return count;
}

bool symbols_find(const struct symbol *symbols, size_t count, void *(*find)(const char *name))
{
    return found_of(symbols, count, find == NULL ? find_global : find) == count;
}

bool symbols_find_all(const struct symbol *symbols, size_t count, const char *heap)
{
    size_t found = found_of(symbols, count, find_global);
    if (found > 0 && found < count)
        shim_services.decline(heap, symbols[found].name, "is missing");
    return found == count;
}

struct search {
    uintptr_t address;
    uint32_t flag; /* that the segment must have: PF_X, PF_W */
    uintptr_t start, end;
};

static int look_at(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct search *search = argument;
    (void)size;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr, end = start + segment->p_memsz;
        if (segment->p_type != PT_LOAD || (segment->p_flags & search->flag) == 0 || search->address < start ||
            search->address >= end)
            continue;
        search->start = start;
        search->end = end;
        return 1;
    }
    return 0;
}

bool symbols_code_of(const void *address, uintptr_t *start, uintptr_t *end)
{
    struct search search = {.address = (uintptr_t)address, .flag = PF_X};
    if (dl_iterate_phdr(look_at, &search) == 0)
        return false;
    *start = search.start;
    *end = search.end;
    return true;
}

bool symbols_is_data(const void *address, size_t length)
{
    struct search search = {.address = (uintptr_t)address, .flag = PF_W};
    return dl_iterate_phdr(look_at, &search) != 0 && length <= search.end - search.address;
}

bool symbols_function_of(const void *address, uintptr_t *start, uintptr_t *end)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (dladdr1 == NULL ||
        dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL || symbol->st_size == 0)
        return false;
    *start = (uintptr_t)info.dli_saddr;
    *end = *start + symbol->st_size;
    return true;
}
