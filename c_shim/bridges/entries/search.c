/* Finds allocators in loaded files by the names of their functions: see entries.h. Whether these can be led elsewhere is for
 * plan.c to tell. */
#define _GNU_SOURCE
#include "search.h"

#include "kit/memory.h"

#include <string.h>

void search_refuse(struct entries_found *found, const char *what, const char *why)
{
    if (found->refused != NULL)
        return;
    found->refused = why;
    strncpy(found->what, what, sizeof found->what - 1);
}

/* ---- names ---- */

/* Which allocators' keys are among the names, a bit for each. A key may be the end of another name. */
static uint32_t find_keys(struct search *search)
{
    uint32_t keys = 0;
    for (uint64_t at = search->file.text; at < search->file.text_end; at += PIECE) {
        uint64_t left = search->file.text_end - at;
        size_t bytes = left < PIECE + OVERLAP ? (size_t)left : PIECE + OVERLAP;
        if (!symbol_file_read_symbols(&search->file, search->piece, bytes, at))
            return 0;
        for (size_t i = 0; i < entry_allocator_count; i++) {
            const char *key = entry_allocators[i].key;
            if ((keys >> i & 1) == 0 && memmem(search->piece, bytes, key, strlen(key) + 1) != NULL)
                keys |= UINT32_C(1) << i;
        }
    }
    return keys;
}

/* The name without the prefix of this build, or NULL if it has another one. */
static const char *without_prefix(const struct search *search, const char *name)
{
    size_t length = strlen(search->prefix);
    return strncmp(name, search->prefix, length) == 0 ? name + length : NULL;
}

static enum ownership ownership_of(const struct search *search, const char *name, const char *rest)
{
    if (rest != NULL && search->prefix[0] != 0)
        return OWN_BY_NAME;
    return search->found.allocator->owns(name);
}

static const struct entry_row *row_of(const struct search *search, const char *name, const char *rest)
{
    const struct entry_allocator *allocator = search->found.allocator;
    if (rest == NULL && strncmp(name, "_Z", 2) != 0)
        return NULL;
    for (size_t i = 0; i < allocator->count; i++) {
        const struct entry_row *row = &allocator->rows[i];
        const char *wanted = entry_is_operator(row) ? name : rest;
        if (wanted != NULL && strcmp(wanted, row->name) == 0)
            return row;
    }
    return NULL;
}

/* ---- symbols ---- */

bool search_each_function(struct search *search, symbol_visitor *visit)
{
    const struct symbol_file *file = &search->file;
    size_t in_piece = PIECE / sizeof(Elf64_Sym);
    for (uint64_t at = file->symbols; at < file->symbols_end; at += in_piece * sizeof(Elf64_Sym)) {
        size_t count = (size_t)((file->symbols_end - at) / sizeof(Elf64_Sym));
        count = count < in_piece ? count : in_piece;
        if (!symbol_file_read_symbols(file, search->piece, count * sizeof(Elf64_Sym), at))
            return false;
        for (size_t i = 0; i < count; i++) {
            Elf64_Sym symbol;
            memcpy(&symbol, search->piece + i * sizeof symbol, sizeof symbol);
            uintptr_t start = file->bias + symbol.st_value, end = start + symbol.st_size;
            if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF &&
                symbol.st_name < file->text_end - file->text && start >= file->start && start < end && end <= file->end)
                visit(search, &symbol, search->text + symbol.st_name);
        }
    }
    return true;
}

static void note_prefix(struct search *search, const Elf64_Sym *symbol, const char *name)
{
    size_t length = strlen(name), end = strlen(search->found.allocator->key);
    (void)symbol;
    if (length < end || length - end > LONGEST_PREFIX || strcmp(name + length - end, search->found.allocator->key) != 0)
        return;
    char prefix[LONGEST_PREFIX + 1] = {0};
    memcpy(prefix, name, length - end);
    for (size_t i = 0; i < search->prefix_count; i++)
        if (strcmp(search->prefixes[i], prefix) == 0)
            return;
    if (search->prefix_count < PREFIXES)
        memcpy(search->prefixes[search->prefix_count++], prefix, sizeof prefix);
}

static void note_entry(struct entries_found *found, const struct entry_found *entry)
{
    for (size_t i = 0; i < found->count; i++)
        if (found->entries[i].start == entry->start)
            return; /* another name of it */
    if (found->count < ENTRIES)
        found->entries[found->count++] = *entry;
}

static void note_function(struct search *search, const struct function *function, const char *name)
{
    if (search->function_count < FUNCTIONS)
        search->functions[search->function_count++] = *function;
    else if (function->ownership == OWN_BY_NAME)
        search_refuse(&search->found, name, "is one of too many functions");
}

static void note_symbol(struct search *search, const Elf64_Sym *symbol, const char *name)
{
    struct entries_found *found = &search->found;
    const struct entry_allocator *allocator = found->allocator;
    uintptr_t start = search->file.bias + symbol->st_value, end = start + symbol->st_size;
    const char *rest = without_prefix(search, name);
    if (allocator->control != NULL && rest != NULL && strcmp(rest, allocator->control) == 0) {
        found->control = start;
        found->is_control_global = ELF64_ST_BIND(symbol->st_info) != STB_LOCAL;
    }
    if (rest != NULL && strcmp(rest, allocator->key) == 0)
        found->key = start;
    enum ownership ownership = ownership_of(search, name, rest);
    const struct entry_row *row = row_of(search, name, rest);
    if (ownership == OWN_NOT && row == NULL)
        return;
    if (row != NULL) {
        bool is_global = ELF64_ST_BIND(symbol->st_info) != STB_LOCAL;
        ownership = entry_is_operator(row) ? OWN_PROBABLY : OWN_BY_NAME;
        note_entry(found, &(struct entry_found){.row = row, .start = start, .end = end, .is_global = is_global});
    }
    bool hands_out = row == NULL && allocator->hands_out(rest != NULL ? rest : name);
    note_function(search, &(struct function){start, end, ownership, hands_out, symbol->st_name}, name);
}

/* ---- files ---- */

static void search_for_build(struct search *search, const struct entry_allocator *allocator, const char *path)
{
    search->function_count = 0;
    memset(&search->found, 0, sizeof search->found);
    search->found.allocator = allocator;
    search->found.object = search->file.start;
    strncpy(search->found.file, symbol_file_name(path), sizeof search->found.file - 1);
    if (search_each_function(search, note_symbol) && search->found.count > 0) {
        search_plan(search);
        search->join(&search->found);
    }
}

static void search_for(struct search *search, const struct entry_allocator *allocator, const char *path)
{
    uint64_t bytes = search->file.text_end - search->file.text;
    char *text = memory_map(bytes + 1);
    if (text == NULL)
        return;
    search->text = text;
    search->found.allocator = allocator;
    memset(search->prefixes, 0, sizeof search->prefixes);
    search->prefix_count = allocator->is_renamed ? 0 : 1;
    bool is_read = symbol_file_read_symbols(&search->file, text, bytes, search->file.text);
    if (is_read && allocator->is_renamed)
        is_read = search_each_function(search, note_prefix);
    for (size_t i = 0; is_read && i < search->prefix_count; i++) {
        search->prefix = search->prefixes[i];
        search_for_build(search, allocator, path);
    }
    munmap(text, bytes + 1);
}

static void visit(void *argument, const struct object_file *file)
{
    struct search *search = argument;
    if (!symbol_file_open(&search->file, file))
        return;
    uint32_t keys = find_keys(search);
    for (size_t i = 0; i < entry_allocator_count; i++)
        if ((keys >> i & 1) != 0)
            search_for(search, &entry_allocators[i], file->path);
    symbol_file_close(&search->file);
}

void entries_search(uintptr_t object, void (*join)(const struct entries_found *found))
{
    struct search *search = memory_map(sizeof *search);
    if (search == NULL)
        return;
    search->join = join;
    objects_each(object, visit, search);
    munmap(search, sizeof *search);
}
