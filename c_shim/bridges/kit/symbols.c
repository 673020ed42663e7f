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

bool symbols_is_of_malloc(const void *slot)
{
    void *function, *next_malloc = shim_services.find_symbol("malloc");
    memcpy(&function, slot, sizeof function);
    return function != NULL && next_malloc != NULL && shim_services.same_object(function, next_malloc);
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

/* ---- sizes of symbols where there is no dladdr1, by the object's own table ---- */

struct symbol_search {
    uintptr_t address;
    size_t bytes;
};

/* The table has no count of symbols: the last one ends the last chain. */
size_t symbols_in_table(const uint32_t *gnu_hash)
{
    enum { HEAD_WORDS = 4 };
    uint32_t buckets_count = gnu_hash[0], first = gnu_hash[1], filter_words = gnu_hash[2], last = 0;
    const uint32_t *buckets = gnu_hash + HEAD_WORDS + filter_words * (sizeof(uintptr_t) / sizeof(uint32_t));
    const uint32_t *chains = buckets + buckets_count;
    for (uint32_t i = 0; i < buckets_count; i++)
        if (buckets[i] > last)
            last = buckets[i];
    if (last < first)
        return first;
    while ((chains[last - first] & 1) == 0)
        last++;
    return (size_t)last + 1;
}

/* The value of a thread-local variable is no address. */
static bool has_extent(const ElfW(Sym) *symbol)
{
    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC || ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT;
}

static int look_for_symbol(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct symbol_search *search = argument;
    const ElfW(Dyn) *entry = NULL;
    const ElfW(Sym) *symbols = NULL;
    const uint32_t *hash = NULL, *gnu_hash = NULL;
    bool is_here = false;
    (void)size;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)start;
        if (segment->p_type == PT_LOAD && search->address >= start && search->address < start + segment->p_memsz)
            is_here = true;
    }
    if (!is_here)
        return 0;
    /* Unlike glibc, musl leaves the addresses as they are in the file. */
    for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        const void *place = (const void *)(object->dlpi_addr + entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            symbols = place;
        else if (entry->d_tag == DT_HASH)
            hash = place;
        else if (entry->d_tag == DT_GNU_HASH)
            gnu_hash = place;
    }
    size_t count = symbols == NULL ? 0 : hash != NULL ? hash[1] : gnu_hash != NULL ? symbols_in_table(gnu_hash) : 0;
    for (size_t i = 0; i < count && search->bytes == 0; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && has_extent(&symbols[i]) &&
            object->dlpi_addr + symbols[i].st_value == search->address)
            search->bytes = symbols[i].st_size;
    return 1;
}

bool symbols_extent_of(const void *address, uintptr_t *start, uintptr_t *end)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (dladdr1 == NULL) {
        struct symbol_search search = {.address = (uintptr_t)address};
        dl_iterate_phdr(look_for_symbol, &search);
        *start = search.address;
        *end = search.address + search.bytes;
        return search.bytes != 0;
    }
    if (dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL || symbol->st_size == 0)
        return false;
    *start = (uintptr_t)info.dli_saddr;
    *end = *start + symbol->st_size;
    return true;
}

/* ---- the unwinder's table: the section .eh_frame_hdr, with the encodings that all linkers choose ---- */

struct unwind_table {
    uint8_t version, frame_encoding, count_encoding, entries_encoding;
    int32_t frame;
    uint32_t count;
    struct {
        int32_t function, description; /* relative to the table */
    } entries[];
};
enum { SIGNED_4_FROM_HERE = 0x1b, UNSIGNED_4 = 0x03, SIGNED_4_FROM_TABLE = 0x3b };

struct unwind_search {
    uintptr_t address;
    const struct unwind_table *table;
    uintptr_t code_end;
};

static int look_for_table(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct unwind_search *search = argument;
    (void)size;
    search->table = NULL;
    search->code_end = 0;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr, end = start + segment->p_memsz;
        if (segment->p_type == PT_GNU_EH_FRAME)
            search->table = (const struct unwind_table *)start;
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X) != 0 && search->address >= start &&
            search->address < end)
            search->code_end = end;
    }
    return search->code_end != 0;
}

bool symbols_unwound_function_of(uintptr_t address, uintptr_t *start, uintptr_t *end)
{
    struct unwind_search search = {.address = address};
    if (dl_iterate_phdr(look_for_table, &search) == 0 || search.table == NULL)
        return false;
    const struct unwind_table *table = search.table;
    if (table->version != 1 || table->frame_encoding != SIGNED_4_FROM_HERE || table->count_encoding != UNSIGNED_4 ||
        table->entries_encoding != SIGNED_4_FROM_TABLE)
        return false;
    /* The entries are sorted: `first` is the number of those that start at or before `address`. */
    uint32_t first = 0, last = table->count;
    while (first < last) {
        uint32_t middle = first + (last - first) / 2;
        if ((uintptr_t)table + (uintptr_t)(intptr_t)table->entries[middle].function <= address)
            first = middle + 1;
        else
            last = middle;
    }
    if (first == 0)
        return false;
    *start = (uintptr_t)table + (uintptr_t)(intptr_t)table->entries[first - 1].function;
    *end = first == table->count ? search.code_end
                                 : (uintptr_t)table + (uintptr_t)(intptr_t)table->entries[first].function;
    return true;
}
