/* Finds allocators without hooks in loaded files, by the names of their functions, and whether these can be led elsewhere: see
 * entries.h. A function is refused unless the bytes in memory are those of the file, its first instructions are known, and
 * nothing jumps between them. */
#define _GNU_SOURCE
#include "entries.h"

#include "kit/gperftools.h"
#include "kit/instructions.h"
#include "kit/memory.h"
#include "kit/ranges.h"

#include <string.h>

#if defined(__x86_64__)

/* Pieces of a file that are read at once, and what a piece repeats of the one before. */
#define PIECE (UINT64_C(1) << 20)
#define OVERLAP 64
/* Names of all symbols, and functions of the allocator, in one file. */
#define MOST_TEXT (UINT64_C(256) << 20)
#define FUNCTIONS 2048
/* A function of an allocator is shorter. */
#define LONGEST (UINT64_C(1) << 16)
/* Between two functions of the allocator lie only such of its own that are named otherwise. */
#define GAP 1024

enum { JUMP = 5, ALIGNMENT = 16 };

struct function {
    uintptr_t start, end;
    bool hands_out; /* or takes back blocks, and is not in the table */
    uint32_t name;
};

/* All memory that a search takes. */
struct search {
    void (*join)(const struct entries_found *found);
    struct symbol_file file;
    const char *text; /* all names, while its symbols are read */
    struct function functions[FUNCTIONS];
    size_t function_count;
    struct entries_found found;
    uint8_t code[LONGEST], in_memory[LONGEST];
    uint8_t piece[PIECE + OVERLAP];
};

static void refuse(struct entries_found *found, const char *what, const char *why)
{
    if (found->refused != NULL)
        return;
    found->refused = why;
    strncpy(found->what, what, sizeof found->what - 1);
}

/* ---- names and symbols ---- */

/* It may be the end of another name. */
static bool has_name(struct search *search, const char *name)
{
    size_t length = strlen(name) + 1;
    for (uint64_t at = search->file.text; at < search->file.text_end; at += PIECE) {
        uint64_t left = search->file.text_end - at;
        size_t bytes = left < PIECE + OVERLAP ? (size_t)left : PIECE + OVERLAP;
        if (!symbol_file_read(&search->file, search->piece, bytes, at))
            return false;
        if (memmem(search->piece, bytes, name, length) != NULL)
            return true;
    }
    return false;
}

static bool begins_with_one(const char *name, const char *const *prefixes, size_t count)
{
    for (size_t i = 0; i < count && prefixes[i] != NULL; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static bool hands_out(const struct entry_allocator *allocator, const char *name)
{
    return begins_with_one(name, allocator->block_prefixes, 2) &&
           (strstr(name, "alloc") != NULL || strstr(name, "free") != NULL || strncmp(name, "mi_new", 6) == 0) &&
           strstr(name, "usable") == NULL && strstr(name, "nallocx") == NULL && strstr(name, "size") == NULL;
}

static void note_entry(struct entries_found *found, const struct entry_row *row, uintptr_t start, uintptr_t end)
{
    for (size_t i = 0; i < found->count; i++)
        if (found->entries[i].start == start)
            return; /* another name of it */
    if (found->count < ENTRIES)
        found->entries[found->count++] = (struct entry_found){.row = row, .start = start, .end = end};
}

static void note_symbol(struct search *search, const Elf64_Sym *symbol)
{
    struct entries_found *found = &search->found;
    const struct entry_allocator *allocator = found->allocator;
    bool is_function = ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && symbol->st_shndx != SHN_UNDEF;
    if (!is_function || symbol->st_size == 0 || symbol->st_name >= search->file.text_end - search->file.text)
        return;
    const char *name = search->text + symbol->st_name;
    uintptr_t start = search->file.bias + symbol->st_value, end = start + symbol->st_size;
    if (strcmp(name, GPERFTOOLS_GET_PROPERTY) == 0)
        found->get_property = start;
    if (!begins_with_one(name, allocator->prefixes, sizeof allocator->prefixes / sizeof allocator->prefixes[0]) ||
        start < search->file.start || end > search->file.end || end < start)
        return;
    bool is_row = false;
    for (size_t i = 0; i < allocator->count && !is_row; i++) {
        is_row = strcmp(name, allocator->rows[i].name) == 0;
        if (is_row)
            note_entry(found, &allocator->rows[i], start, end);
    }
    if (search->function_count == FUNCTIONS) {
        refuse(found, name, "is one of too many functions");
        return;
    }
    search->functions[search->function_count++] =
        (struct function){start, end, !is_row && hands_out(allocator, name), symbol->st_name};
}

static bool find_symbols(struct search *search)
{
    size_t in_piece = PIECE / sizeof(Elf64_Sym);
    for (uint64_t at = search->file.symbols; at < search->file.symbols_end; at += in_piece * sizeof(Elf64_Sym)) {
        size_t count = (size_t)((search->file.symbols_end - at) / sizeof(Elf64_Sym));
        count = count < in_piece ? count : in_piece;
        if (!symbol_file_read(&search->file, search->piece, count * sizeof(Elf64_Sym), at))
            return false;
        for (size_t i = 0; i < count; i++) {
            Elf64_Sym symbol;
            memcpy(&symbol, search->piece + i * sizeof symbol, sizeof symbol);
            note_symbol(search, &symbol);
        }
    }
    return search->found.count > 0;
}

static size_t entries_between(const struct entries_found *found, uintptr_t start, uintptr_t end)
{
    size_t count = 0;
    for (size_t i = 0; i < found->count; i++)
        count += found->entries[i].start >= start && found->entries[i].start < end;
    return count;
}

/* The part of the file in which the allocator's functions lie next to each other, and most of those that are led elsewhere. */
static void find_range(struct search *search)
{
    struct entries_found *found = &search->found;
    const struct function *functions = search->functions;
    size_t most = 0;
    for (size_t i = 0; i < search->function_count;) {
        uintptr_t start = functions[i].start, end = functions[i].end;
        for (i++; i < search->function_count && functions[i].start <= end + GAP; i++)
            end = functions[i].end > end ? functions[i].end : end;
        size_t count = entries_between(found, start, end);
        if (count > most) {
            most = count;
            found->start = start;
            found->end = end;
        }
    }
}

/* ---- code ---- */

static bool read_code(struct search *search, uintptr_t start, size_t bytes)
{
    uint64_t from, length;
    return bytes <= sizeof search->code && symbol_file_code(&search->file, start, &from, &length) && length >= bytes &&
           symbol_file_read(&search->file, search->code, bytes, from);
}

/* Where bytes that look like a jump or a call with a 32-bit distance lead to, whether they are one or not. 0: they do not. */
static uintptr_t leads_to(const uint8_t *code, size_t room, uintptr_t address, size_t *distance_at)
{
    int32_t distance;
    if (room >= 5 && (code[0] == 0xe9 || code[0] == 0xe8))
        *distance_at = 1;
    else if (room >= 6 && code[0] == 0x0f && (code[1] & 0xf0) == 0x80)
        *distance_at = 2;
    else
        return 0;
    memcpy(&distance, code + *distance_at, sizeof distance);
    return address + *distance_at + 4 + (uintptr_t)(intptr_t)distance;
}

static size_t entry_at(const struct entries_found *found, uintptr_t start)
{
    size_t i = 0;
    while (i < found->count && found->entries[i].start != start)
        i++;
    return i;
}

/* Whether an address is between the beginning of a function that is led elsewhere and the last instruction that is moved. */
static bool is_in_head(const struct entries_found *found, uintptr_t address)
{
    for (size_t i = 0; i < found->count; i++) {
        uintptr_t into = address - found->entries[i].start;
        if (into > 0 && into < found->entries[i].skipped + found->entries[i].moved)
            return true;
    }
    return false;
}

/* Of compilers and linkers, between functions: nop of any length, or int3. */
static bool is_filling(const uint8_t *code)
{
    while (*code == 0x66 || *code == 0x2e)
        code++;
    return *code == 0x90 || *code == 0xcc || (code[0] == 0x0f && code[1] == 0x1f);
}

/* Why not, or NULL. Its code is in `code` then. */
static const char *plan_head(struct search *search, struct entry_found *entry)
{
    static const uint8_t endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
    /* With what fills up to the next function. */
    size_t own = (size_t)(entry->end - entry->start);
    size_t bytes = ((entry->end + ALIGNMENT - 1) & -(uintptr_t)ALIGNMENT) - entry->start;
    uint64_t from, rest;
    if (symbol_file_code(&search->file, entry->start, &from, &rest) && rest < bytes)
        bytes = (size_t)rest;
    struct iovec memory = {(void *)entry->start, bytes};
    if (!read_code(search, entry->start, bytes) ||
        shim_services.copy_foreign(search->in_memory, bytes, &memory, 1) != bytes ||
        memcmp(search->code, search->in_memory, bytes) != 0)
        return "is not in memory as it is in the file";
    if (bytes >= sizeof endbr64 && memcmp(search->code, endbr64, sizeof endbr64) == 0)
        entry->skipped = sizeof endbr64;
    bool is_over = false;
    while (entry->moved < JUMP) {
        size_t at = entry->skipped + entry->moved;
        struct instruction next = instruction_at(search->code + at, bytes - at, entry->start + at);
        bool is_movable = next.kind == INSTRUCTION_PLAIN || next.kind == INSTRUCTION_DATA ||
                          next.kind == INSTRUCTION_CONDITION || next.kind == INSTRUCTION_JUMP;
        if (at >= own ? !is_over || !is_filling(search->code + at) : next.kind == INSTRUCTION_END)
            return "is too short";
        if (at >= own && next.kind == INSTRUCTION_END)
            next.length = 1; /* int3 */
        else if (!is_movable)
            return "begins with an instruction that is not known";
        is_over |= next.kind == INSTRUCTION_JUMP;
        entry->moved += next.length;
    }
    memcpy(entry->begins, search->code, entry->skipped + entry->moved);
    return NULL;
}

/* Whether it does nothing but have another function free the block, which sees that as well as it would. */
static bool frees_by_another(const struct search *search, const struct entry_found *entry)
{
    size_t bytes = (size_t)(entry->end - entry->start), at = 0;
    bool is_found = false;
    for (struct instruction next; entry->row->kind == ENTRY_FREES && at < bytes; at += next.length) {
        next = instruction_at(search->code + at, bytes - at, entry->start + at);
        if (next.kind == INSTRUCTION_UNKNOWN || next.kind == INSTRUCTION_CONDITION)
            return false;
        size_t to = entry_at(&search->found, next.target);
        if ((next.kind == INSTRUCTION_CALL || next.kind == INSTRUCTION_JUMP) && to < search->found.count)
            is_found |= search->found.entries[to].row->kind == ENTRY_FREES && next.target != entry->start;
    }
    return is_found;
}

static void plan_heads(struct search *search)
{
    struct entries_found *found = &search->found;
    for (size_t i = 0; i < found->count;) {
        struct entry_found *entry = &found->entries[i];
        const char *why = plan_head(search, entry);
        if (why != NULL && frees_by_another(search, entry)) {
            *entry = found->entries[--found->count];
            continue;
        }
        if (why != NULL)
            refuse(found, entry->row->name, why);
        i++;
    }
}

/* Once all heads are known. */
static void look_at_jump(struct entries_found *found, const struct entry_found *entry, uintptr_t target, uintptr_t distance_at,
                         bool is_short)
{
    size_t to = entry_at(found, target);
    if (is_in_head(found, target)) {
        refuse(found, entry->row->name, "jumps between instructions that would be moved");
    } else if (to < found->count && is_short) {
        refuse(found, entry->row->name, "has a short jump to another function");
    } else if (to < found->count && found->site_count == SITES) {
        refuse(found, entry->row->name, "has too many jumps to other functions");
    } else if (to < found->count && entry->row->kind != ENTRY_FREES) {
        found->sites[found->site_count++] = (struct entry_site){distance_at, to};
    }
}

/* From the first instruction that is not known on, all bytes are taken for jumps that may be some. */
static void look_at_jumps(struct search *search, const struct entry_found *entry)
{
    size_t bytes = (size_t)(entry->end - entry->start), at = 0;
    if (!read_code(search, entry->start, bytes))
        return;
    for (struct instruction next; at < bytes; at += next.length) {
        const uint8_t *code = search->code + at;
        next = instruction_at(code, bytes - at, entry->start + at);
        if (next.kind == INSTRUCTION_UNKNOWN)
            break;
        /* A moved jump may be short: its copy is not. */
        bool is_moved = at < entry->skipped + entry->moved;
        if (next.target != 0)
            look_at_jump(&search->found, entry, next.target, entry->start + at + next.length - 4,
                         !is_moved && (code[0] == 0xeb || (code[0] & 0xf0) == 0x70));
    }
    for (; at < bytes; at++) {
        const uint8_t *code = search->code + at;
        uintptr_t address = entry->start + at, target;
        size_t distance_at;
        target = leads_to(code, bytes - at, address, &distance_at);
        if (target != 0)
            look_at_jump(&search->found, entry, target, address + distance_at, false);
        if (at + 2 <= bytes && (code[0] == 0xeb || (code[0] & 0xf0) == 0x70 || (code[0] & 0xfc) == 0xe0)) {
            target = address + 2 + (uintptr_t)(intptr_t)(int8_t)code[1];
            if (is_in_head(&search->found, target) || target == entry->start)
                look_at_jump(&search->found, entry, target, 0, true);
        }
    }
}

static const struct function *function_at(const struct search *search, uintptr_t start)
{
    size_t first = 0, last = search->function_count;
    while (first < last) {
        size_t middle = first + (last - first) / 2;
        if (search->functions[middle].start < start)
            first = middle + 1;
        else
            last = middle;
    }
    return first < search->function_count && search->functions[first].start == start ? &search->functions[first] : NULL;
}

static bool is_of_allocator(const struct search *search, uintptr_t address)
{
    if (address >= search->found.start && address < search->found.end)
        return true;
    for (size_t i = 0; i < search->function_count; i++)
        if (address >= search->functions[i].start && address < search->functions[i].end)
            return true;
    return false;
}

/* Refuses the allocator if any code of the file jumps into the middle of a head, or if code outside of the allocator calls a function
 * that hands out blocks and is not in the table. */
static void look_at_bytes(struct search *search, const uint8_t *code, size_t bytes, size_t room, uintptr_t address)
{
    struct entries_found *found = &search->found;
    uintptr_t lowest = search->functions[0].start, highest = search->functions[search->function_count - 1].end;
    for (size_t i = 0; i < bytes && found->refused == NULL; i++) {
        size_t distance_at;
        uintptr_t target = leads_to(code + i, room - i, address + i, &distance_at);
        if (target < lowest || target >= highest)
            continue;
        if (is_in_head(found, target))
            refuse(found, "other code", "jumps between instructions that would be moved");
        const struct function *to = function_at(search, target);
        if (to != NULL && to->hands_out && !is_of_allocator(search, address + i))
            refuse(found, search->text + to->name, "is called as well, and not known");
    }
}

static void look_at_all_code(struct search *search)
{
    for (unsigned i = 0; i < search->file.header.e_phnum; i++) {
        Elf64_Phdr segment;
        uint64_t place = search->file.header.e_phoff + (uint64_t)i * sizeof segment;
        if (!symbol_file_read(&search->file, &segment, sizeof segment, place))
            return;
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0)
            continue;
        for (uint64_t at = 0; at < segment.p_filesz; at += PIECE) {
            uint64_t left = segment.p_filesz - at;
            size_t bytes = left < PIECE ? (size_t)left : PIECE, room = left < PIECE + OVERLAP ? (size_t)left : PIECE + OVERLAP;
            if (!symbol_file_read(&search->file, search->piece, room, segment.p_offset + at)) {
                refuse(&search->found, "the file", "cannot be read");
                return;
            }
            look_at_bytes(search, search->piece, bytes, room, search->file.bias + segment.p_vaddr + at);
        }
    }
}

/* ---- files ---- */

static void plan(struct search *search)
{
    struct entries_found *found = &search->found;
    ranges_sort(search->functions, search->function_count, sizeof search->functions[0]);
    find_range(search);
    plan_heads(search);
    for (size_t i = 0; i < found->count; i++)
        look_at_jumps(search, &found->entries[i]);
    look_at_all_code(search);
}

static void search_for(struct search *search, const struct entry_allocator *allocator, const char *path)
{
    uint64_t bytes = search->file.text_end - search->file.text;
    if (!has_name(search, allocator->key) || bytes == 0 || bytes > MOST_TEXT)
        return;
    char *text = memory_map(bytes + 1);
    if (text == NULL)
        return;
    search->text = text;
    search->function_count = 0;
    memset(&search->found, 0, sizeof search->found);
    search->found.allocator = allocator;
    search->found.object = search->file.start;
    strncpy(search->found.file, symbol_file_name(path), sizeof search->found.file - 1);
    if (symbol_file_read(&search->file, text, bytes, search->file.text) && find_symbols(search)) {
        plan(search);
        search->join(&search->found);
    }
    munmap(text, bytes + 1);
}

static void visit(void *argument, const struct object_file *file)
{
    struct search *search = argument;
    if (!symbol_file_open(&search->file, file))
        return;
    for (size_t i = 0; i < entry_allocator_count; i++)
        search_for(search, &entry_allocators[i], file->path);
    symbol_file_close(&search->file);
}

void entries_search(void (*join)(const struct entries_found *found))
{
    struct search *search = memory_map(sizeof *search);
    if (search == NULL)
        return;
    search->join = join;
    objects_each(0, visit, search);
    munmap(search, sizeof *search);
}

#endif
