/* Finds jemallocs in loaded files by the names of their functions: see jemalloc.h.
 *
 * A build of jemalloc puts one prefix before all its names: "je_" and "je_je_", "_rjem_" and "_rjem_je_", "duckdb_je_". It is
 * what comes before `mallctl`. A file's names are read twice, piece by piece, for the prefixes and then for all names that
 * begin with them; its symbols once. */
#define _GNU_SOURCE
#include "jemalloc.h"

#include "kit/memory.h"
#include "kit/ranges.h"
#include "kit/symbol_file.h"

#include <stdlib.h>
#include <string.h>

/* Pieces of a file that are read at once. */
#define PIECE (UINT64_C(1) << 20)
/* No name of jemalloc's is longer, its prefix included. A piece repeats so much of the one before. */
#define LONGEST_NAME 128
#define LONGEST_PREFIX 40
/* In one file. */
#define PREFIXES 4
/* Those that are looked for, with their parts. */
#define FUNCTIONS 256
/* A power of two, for the names of those functions. */
#define NAMES 1024
/* Between two functions of one range: what the linker fills up. */
#define GAP 64

static const char control[] = "mallctl";
static const char *const function_names[JEMALLOC_FUNCTIONS] = {
    [JEMALLOC_MALLCTL] = control,   [JEMALLOC_MALLOC] = "malloc",   [JEMALLOC_MALLOCX] = "mallocx",
    [JEMALLOC_FREE] = "free",       [JEMALLOC_DALLOCX] = "dallocx", [JEMALLOC_SDALLOCX] = "sdallocx",
};

/* Functions from an entry to the call of a hook, behind the prefix or behind a second one that ends in "je_": their frames are left
 * out. What lies between them need not be known. */
static const char *const ways[] = {
    "malloc",   "calloc",  "realloc", "posix_memalign", "aligned_alloc",     "memalign",           "valloc",
    "mallocx",  "rallocx", "xallocx", "malloc_default", "hook_invoke_alloc", "hook_invoke_expand", "arena_ralloc",
    "large_ralloc",
};
/* Static, and reached by a jump. */
static const char unprefixed_way[] = "do_rallocx";

struct prefix {
    char text[LONGEST_PREFIX];
    size_t length;
};

/* Where names begin in the table of names. */
struct names {
    uint32_t places[NAMES]; /* a hash table; 0: free, as the first name is empty */
    uint32_t functions[JEMALLOC_FUNCTIONS];
    size_t used;
};

/* All memory that a search takes. */
struct search {
    bool (*is_known)(uintptr_t start);
    void (*join)(const struct jemalloc_found *found);
    struct symbol_file file;
    struct prefix prefixes[PREFIXES];
    size_t prefix_count;
    struct names names;
    struct jemalloc_range functions[FUNCTIONS];
    size_t function_count;
    bool is_global[JEMALLOC_FUNCTIONS];
    unsigned char piece[PIECE + 2 * LONGEST_NAME];
};

/* ---- names ---- */

/* Reads the piece of the names that follows `at`, with what comes before it and behind it: in `piece` from `*skipped` on, up
 * to the result. */
static size_t read_names(struct search *search, uint64_t at, size_t *skipped)
{
    uint64_t from = at - search->file.text < LONGEST_NAME ? search->file.text : at - LONGEST_NAME;
    uint64_t to = at + PIECE + LONGEST_NAME < search->file.text_end ? at + PIECE + LONGEST_NAME : search->file.text_end;
    *skipped = (size_t)(at - from);
    size_t bytes = (size_t)(to - from);
    return symbol_file_read_symbols(&search->file, search->piece, bytes, from) ? bytes : 0;
}

static bool is_name_character(unsigned char character)
{
    return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
           (character >= '0' && character <= '9') || character == '_';
}

/* The name ends with `mallctl`, which begins at `at`. */
static void note_prefix(struct search *search, const unsigned char *at)
{
    size_t length = 0;
    while (length < LONGEST_PREFIX && at - length > search->piece && is_name_character(at[-(ptrdiff_t)length - 1]))
        length++;
    if (length == LONGEST_PREFIX || search->prefix_count == PREFIXES)
        return;
    const unsigned char *text = at - length;
    if (text > search->piece && text[-1] != 0)
        return;
    for (size_t i = 0; i < search->prefix_count; i++) {
        const struct prefix *known = &search->prefixes[i];
        if (known->length == length && memcmp(known->text, text, length) == 0)
            return;
    }
    struct prefix *prefix = &search->prefixes[search->prefix_count++];
    memcpy(prefix->text, text, length);
    prefix->length = length;
}

static void find_prefixes(struct search *search)
{
    search->prefix_count = 0;
    for (uint64_t at = search->file.text; at < search->file.text_end; at += PIECE) {
        size_t skipped, bytes = read_names(search, at, &skipped);
        const unsigned char *found = search->piece + skipped, *end = search->piece + bytes;
        while (found < end && (found = memmem(found, (size_t)(end - found), control, sizeof control)) != NULL) {
            note_prefix(search, found);
            found++;
        }
    }
}

static uint32_t *place_of(struct names *names, uint32_t name)
{
    uint32_t hash = name * UINT32_C(0x9e3779b1) >> 22;
    while (names->places[hash % NAMES] != 0 && names->places[hash % NAMES] != name)
        hash++;
    return &names->places[hash % NAMES];
}

/* Whether the name is that of a function on the way to a hook, or of a part of one: `malloc`, `je_malloc_default.cold`. */
static bool is_on_the_way(const char *name)
{
    size_t length = strcspn(name, ".");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        size_t end = strlen(ways[i]);
        if (length < end || strncmp(name + length - end, ways[i], end) != 0)
            continue;
        const char *second = name + length - end - 3;
        if (length == end || (length >= end + 3 && strncmp(second, "je_", 3) == 0))
            return true;
    }
    return false;
}

static void note_name(struct search *search, const struct prefix *prefix, uint32_t name, const char *text)
{
    struct names *names = &search->names;
    bool has_prefix = strncmp(text, prefix->text, prefix->length) == 0;
    bool is_called = false;
    for (size_t i = 0; has_prefix && i < JEMALLOC_FUNCTIONS; i++)
        is_called |= strcmp(text + prefix->length, function_names[i]) == 0;
    bool is_way = has_prefix && is_on_the_way(text + prefix->length);
    if (!is_called && !is_way && strncmp(text, unprefixed_way, strlen(unprefixed_way)) != 0)
        return;
    uint32_t *place = place_of(names, name);
    if (*place == 0) {
        if (names->used == NAMES / 2)
            return;
        names->used++;
        *place = name;
    }
    for (size_t i = 0; is_called && i < JEMALLOC_FUNCTIONS; i++)
        if (strcmp(text + prefix->length, function_names[i]) == 0)
            names->functions[i] = name;
}

/* Notes those of the names that begin with `beginning`. Linkers let a name be the end of another one, such as `malloc` of
 * `__libc_malloc`, so one may begin anywhere. */
static void find_names_with(struct search *search, const struct prefix *prefix, const char *beginning, size_t length)
{
    for (uint64_t at = search->file.text; at < search->file.text_end; at += PIECE) {
        size_t skipped, bytes = read_names(search, at, &skipped);
        if (bytes == 0)
            return;
        const unsigned char *next = search->piece + skipped, *end = search->piece + bytes;
        const unsigned char *found;
        while (next < end && (found = memmem(next, (size_t)(end - next), beginning, length)) != NULL) {
            next = found + 1;
            size_t room = (size_t)(end - found);
            /* A name that is cut here, or that the next piece begins with, is found there. */
            bool is_here = memchr(found, 0, room < LONGEST_NAME ? room : LONGEST_NAME) != NULL;
            if (!is_here)
                continue;
            uint64_t place = at - skipped + (uint64_t)(found - search->piece) - search->file.text;
            if (place < UINT32_MAX)
                note_name(search, prefix, (uint32_t)place, (const char *)found);
        }
    }
}

static void find_names(struct search *search, const struct prefix *prefix)
{
    memset(&search->names, 0, sizeof search->names);
    find_names_with(search, prefix, unprefixed_way, strlen(unprefixed_way));
    if (prefix->length > 0) {
        find_names_with(search, prefix, prefix->text, prefix->length);
        return;
    }
    find_names_with(search, prefix, "je_", 3);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        find_names_with(search, prefix, ways[i], strlen(ways[i]));
    for (size_t i = 0; i < JEMALLOC_FUNCTIONS; i++)
        find_names_with(search, prefix, function_names[i], strlen(function_names[i]));
}

/* ---- symbols ---- */

static void note_symbol(struct search *search, const Elf64_Sym *symbol, struct jemalloc_found *found)
{
    bool is_function = ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_shndx != SHN_UNDEF;
    if (!is_function || symbol->st_name == 0 || *place_of(&search->names, symbol->st_name) == 0)
        return;
    uintptr_t start = search->file.bias + symbol->st_value, end = start + symbol->st_size;
    if (start < search->file.start || end > search->file.end || end < start)
        return;
    for (size_t i = 0; i < JEMALLOC_FUNCTIONS; i++) {
        if (symbol->st_name != search->names.functions[i])
            continue;
        found->functions[i] = start;
        search->is_global[i] = ELF64_ST_BIND(symbol->st_info) != STB_LOCAL;
    }
    if (search->function_count < FUNCTIONS && end > start)
        search->functions[search->function_count++] = (struct jemalloc_range){start, end};
}

static void find_symbols(struct search *search, struct jemalloc_found *found)
{
    search->function_count = 0;
    size_t in_piece = PIECE / sizeof(Elf64_Sym);
    for (uint64_t at = search->file.symbols; at < search->file.symbols_end; at += in_piece * sizeof(Elf64_Sym)) {
        size_t count = (size_t)((search->file.symbols_end - at) / sizeof(Elf64_Sym));
        count = count < in_piece ? count : in_piece;
        if (!symbol_file_read_symbols(&search->file, search->piece, count * sizeof(Elf64_Sym), at))
            return;
        for (size_t i = 0; i < count; i++) {
            Elf64_Sym symbol;
            memcpy(&symbol, search->piece + i * sizeof symbol, sizeof symbol);
            note_symbol(search, &symbol, found);
        }
    }
}

/* A compiler that sees the whole program may leave out arguments of functions that nobody else can name, as `mallocx` of rustc.
 * Those that others can name keep theirs. */
static void drop_changed(const struct search *search, struct jemalloc_found *found)
{
    if (!search->is_global[JEMALLOC_MALLOC] || !search->is_global[JEMALLOC_FREE])
        return;
    for (size_t i = 0; i < JEMALLOC_FUNCTIONS; i++)
        if (!search->is_global[i])
            found->functions[i] = 0;
}

/* Functions next to each other become one range; the largest ranges are kept. */
static void find_ranges(struct search *search, struct jemalloc_found *found)
{
    ranges_sort(search->functions, search->function_count, sizeof search->functions[0]);
    for (size_t i = 0; i < search->function_count;) {
        struct jemalloc_range range = search->functions[i++];
        while (i < search->function_count && search->functions[i].start <= range.end + GAP) {
            if (search->functions[i].end > range.end)
                range.end = search->functions[i].end;
            i++;
        }
        if (found->ranges < JEMALLOC_RANGES) {
            found->code[found->ranges++] = range;
            continue;
        }
        struct jemalloc_range *least = &found->code[0];
        for (size_t j = 1; j < JEMALLOC_RANGES; j++)
            if (found->code[j].end - found->code[j].start < least->end - least->start)
                least = &found->code[j];
        if (range.end - range.start > least->end - least->start)
            *least = range;
    }
}

/* ---- files ---- */

static void search_file(struct search *search, const char *path)
{
    find_prefixes(search);
    for (size_t i = 0; i < search->prefix_count; i++) {
        struct jemalloc_found found = {.start = search->file.start, .end = search->file.end};
        find_names(search, &search->prefixes[i]);
        if (search->names.functions[JEMALLOC_MALLCTL] == 0)
            continue;
        memset(search->is_global, 0, sizeof search->is_global);
        find_symbols(search, &found);
        drop_changed(search, &found);
        if (found.functions[JEMALLOC_MALLCTL] == 0)
            continue;
        find_ranges(search, &found);
        strncpy(found.file, symbol_file_name(path), sizeof found.file - 1);
        search->join(&found);
    }
}

static void visit(void *argument, const struct object_file *file)
{
    struct search *search = argument;
    if (search->is_known(file->start) || !symbol_file_open(&search->file, file))
        return;
    search_file(search, file->path);
    symbol_file_close(&search->file);
}

void jemalloc_search(uintptr_t object, bool (*is_known)(uintptr_t start),
                     void (*join)(const struct jemalloc_found *found))
{
    struct search *search = memory_map(sizeof *search);
    if (search == NULL)
        return;
    search->is_known = is_known;
    search->join = join;
    objects_each(object, visit, search);
    munmap(search, sizeof *search);
}
