/* Whether the functions of an allocator can be led elsewhere: see search.h. A function is refused unless the bytes in memory are those
 * of the file, its first instructions are known, and nothing jumps between them. */
#define _GNU_SOURCE
#include "search.h"

#include "branches.h"
#include "kit/instructions.h"
#include "kit/ranges.h"

#include <string.h>

/* Between two functions of the allocator lie only such of its own that are named otherwise. */
#define GAP 1024

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
        if (functions[i].ownership != OWN_BY_NAME) {
            i++;
            continue;
        }
        uintptr_t start = functions[i].start, end = functions[i].end;
        for (i++; i < search->function_count && functions[i].start <= end + GAP; i++)
            if (functions[i].ownership == OWN_BY_NAME && functions[i].end > end)
                end = functions[i].end;
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

static size_t entry_at(const struct entries_found *found, uintptr_t start)
{
    size_t i = 0;
    while (i < found->count && found->entries[i].start != start)
        i++;
    return i;
}

/* The first one that begins there, or NULL: it may have several names. */
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

/* Why not, or NULL. Its code is in `code` then. */
static const char *plan_head(struct search *search, struct entry_found *entry)
{
    /* With what fills up to the next function. */
    size_t own = (size_t)(entry->end - entry->start);
    size_t bytes = ((entry->end + FUNCTION_ALIGNMENT - 1) & -(uintptr_t)FUNCTION_ALIGNMENT) - entry->start;
    uint64_t from, rest;
    if (symbol_file_code(&search->file, entry->start, &from, &rest) && rest < bytes)
        bytes = (size_t)rest;
    struct iovec memory = {(void *)entry->start, bytes};
    if (!read_code(search, entry->start, bytes) ||
        shim_services.copy_foreign(search->in_memory, bytes, &memory, 1) != bytes ||
        memcmp(search->code, search->in_memory, bytes) != 0)
        return "is not in memory as it is in the file";
    const char *why = branches_plan_head(search->code, own, bytes, entry);
    if (why != NULL)
        return why;
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
            search_refuse(found, entry->row->name, why);
        i++;
    }
}

/* ---- jumps and calls in the allocator's functions ---- */

typedef void target_visitor(struct search *search, struct entry_found *entry, const struct branch *branch);

struct visit {
    struct search *search;
    struct entry_found *entry;
    target_visitor *visitor;
};

/* Short jumps are frequent among bytes that are none. */
static void visit_target(void *argument, const struct branch *branch)
{
    struct visit *visit = argument;
    bool is_likely = !branch->may_be_none || !branch->is_short;
    if (is_likely || is_in_head(&visit->search->found, branch->target) || branch->target == visit->entry->start)
        visit->visitor(visit->search, visit->entry, branch);
}

static void each_target(struct search *search, struct entry_found *entry, target_visitor *visitor)
{
    struct visit visit = {search, entry, visitor};
    size_t bytes = (size_t)(entry->end - entry->start);
    if (read_code(search, entry->start, bytes))
        branches_of_function(search->code, bytes, entry, visit_target, &visit);
}

/* Once all heads are known. */
static void look_at_jump(struct search *search, struct entry_found *entry, const struct branch *branch)
{
    struct entries_found *found = &search->found;
    size_t to = entry_at(found, branch->target);
    if (is_in_head(found, branch->target)) {
        search_refuse(found, entry->row->name, "jumps between instructions that would be moved");
    } else if (to < found->count && branch->is_short) {
        search_refuse(found, entry->row->name, "has a short jump to another function");
    } else if (to < found->count && found->site_count == SITES) {
        search_refuse(found, entry->row->name, "has too many jumps to other functions");
    } else if (to < found->count && entry->row->kind != ENTRY_FREES) {
        found->sites[found->site_count++] = (struct entry_site){branch->distance_at, to};
    }
}

static void confirm(struct search *search, struct entry_found *entry, const struct branch *branch)
{
    const struct entries_found *found = &search->found;
    size_t to = entry_at(found, branch->target);
    entry->is_confirmed |= to < found->count ? entry_is_operator(found->entries[to].row) && found->entries[to].is_confirmed
                                             : function_at(search, branch->target) != NULL;
}

/* An operator that reaches the allocator only by functions that are led elsewhere needs no stub of its own: it may be the program's,
 * and keep something before its blocks. But calls from the range of the allocator are not counted. */
static void drop_foreign_operators(struct search *search)
{
    struct entries_found *found = &search->found;
    for (bool is_changed = true; is_changed;) {
        is_changed = false;
        for (size_t i = 0; i < found->count; i++) {
            struct entry_found *entry = &found->entries[i];
            if (entry->is_confirmed || !entry_is_operator(entry->row))
                continue;
            entry->is_confirmed = entry->start >= found->start && entry->start < found->end;
            each_target(search, entry, confirm);
            is_changed |= entry->is_confirmed;
        }
    }
    for (size_t i = 0; i < found->count;)
        if (entry_is_operator(found->entries[i].row) && !found->entries[i].is_confirmed)
            found->entries[i] = found->entries[--found->count];
        else
            i++;
}

/* A compiler that sees the whole program may leave out arguments of functions that nobody else can name, as `mallocx` of rustc.
 * Those that others can name keep theirs. */
static void drop_changed(struct search *search)
{
    struct entries_found *found = &search->found;
    bool is_any_global = false;
    for (size_t i = 0; i < found->count; i++)
        is_any_global |= found->entries[i].is_global && !entry_is_operator(found->entries[i].row);
    if (is_any_global && !found->is_control_global)
        found->control = 0;
    for (size_t i = 0; i < found->count;) {
        if (!is_any_global || found->entries[i].is_global) {
            i++;
            continue;
        }
        for (size_t j = 0; j < search->function_count; j++)
            if (search->functions[j].start == found->entries[i].start)
                search->functions[j].hands_out = true;
        found->entries[i] = found->entries[--found->count];
    }
}

/* ---- all code of the file ---- */

static bool is_of_allocator(const struct search *search, uintptr_t address)
{
    if (address >= search->found.start && address < search->found.end)
        return true;
    for (size_t i = 0; i < search->function_count; i++)
        if (address >= search->functions[i].start && address < search->functions[i].end)
            return true;
    return false;
}

/* The distance of most jumps is seldom seen elsewhere, but jemalloc's `shr $9, %rax; and $mask, %eax` looks like a call. */
static void note_hit(struct search *search, uintptr_t at, const char *what, const char *why)
{
    if (search->hit_count == HITS)
        search_refuse(&search->found, what, why);
    else
        search->hits[search->hit_count++] = (struct hit){.at = at, .what = what, .why = why};
}

/* Notes code of the file that jumps into the middle of a head, and code outside of the allocator that calls a function that hands out
 * blocks and is not in the table. */
static void look_at_target(void *argument, const struct branch *branch)
{
    struct search *search = argument;
    struct entries_found *found = &search->found;
    if (found->refused != NULL)
        return;
    if (is_in_head(found, branch->target))
        note_hit(search, branch->at, "other code", "jumps between instructions that would be moved");
    const struct function *to = function_at(search, branch->target), *last = search->functions + search->function_count;
    bool is_known = entry_at(found, branch->target) < found->count;
    for (; to != NULL && to < last && to->start == branch->target && !is_known; to++)
        if (to->hands_out && !is_of_allocator(search, branch->at))
            note_hit(search, branch->at, search->text + to->name, "is called as well, and not known");
}

static void note_function_of_hits(struct search *search, const Elf64_Sym *symbol, const char *name)
{
    (void)name;
    uintptr_t start = search->file.bias + symbol->st_value;
    for (size_t i = 0; i < search->hit_count; i++)
        if (search->hits[i].at - start < symbol->st_size)
            search->hits[i].function = start;
}

/* Whether an instruction of the function begins there; if that cannot be told, one does. */
static bool is_instruction(struct search *search, const struct hit *hit)
{
    size_t bytes = (size_t)(hit->at - hit->function) + OVERLAP, at = 0;
    uint64_t from, rest;
    if (hit->function == 0)
        return true;
    if (symbol_file_code(&search->file, hit->function, &from, &rest) && rest < bytes)
        bytes = (size_t)rest;
    if (!read_code(search, hit->function, bytes))
        return true;
    while (hit->function + at < hit->at) {
        struct instruction next = instruction_at(search->code + at, bytes - at, hit->function + at);
        if (next.kind == INSTRUCTION_UNKNOWN)
            return true;
        at += next.length;
    }
    return hit->function + at == hit->at;
}

static void look_at_hits(struct search *search)
{
    if (search->hit_count == 0 || search->found.refused != NULL)
        return;
    search_each_function(search, note_function_of_hits);
    for (size_t i = 0; i < search->hit_count; i++)
        if (is_instruction(search, &search->hits[i]))
            search_refuse(&search->found, search->hits[i].what, search->hits[i].why);
}

/* Of the functions that must not be reached otherwise than is known. */
static void find_bounds(struct search *search)
{
    search->bounds = (struct range){UINTPTR_MAX, 0};
    for (size_t i = 0; i < search->function_count; i++) {
        const struct function *function = &search->functions[i];
        if (!function->hands_out && entry_at(&search->found, function->start) == search->found.count)
            continue;
        if (function->start < search->bounds.start)
            search->bounds.start = function->start;
        if (function->end > search->bounds.end)
            search->bounds.end = function->end;
    }
}

static void look_at_all_code(struct search *search)
{
    for (unsigned i = 0; i < search->file.elf.header.e_phnum; i++) {
        Elf64_Phdr segment;
        uint64_t place = search->file.elf.header.e_phoff + (uint64_t)i * sizeof segment;
        if (!symbol_file_read(&search->file, &segment, sizeof segment, place))
            return;
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0)
            continue;
        for (uint64_t at = 0; at < segment.p_filesz; at += PIECE) {
            uint64_t left = segment.p_filesz - at;
            size_t bytes = left < PIECE ? (size_t)left : PIECE, room = left < PIECE + OVERLAP ? (size_t)left : PIECE + OVERLAP;
            if (!symbol_file_read(&search->file, search->piece, room, segment.p_offset + at)) {
                search_refuse(&search->found, "the file", "cannot be read");
                return;
            }
            uintptr_t address = search->file.bias + segment.p_vaddr + at;
            branches_in_file(search->piece, bytes, room, address, search->bounds, look_at_target, search);
        }
    }
}

/* Whether the loader changes code of the file. */
static bool is_code_relocated(struct search *search)
{
    Elf64_Phdr segment;
    Elf64_Dyn entry;
    for (unsigned i = 0; i < search->file.elf.header.e_phnum; i++) {
        uint64_t place = search->file.elf.header.e_phoff + (uint64_t)i * sizeof segment;
        if (!symbol_file_read(&search->file, &segment, sizeof segment, place))
            return true;
        for (uint64_t at = 0; segment.p_type == PT_DYNAMIC && at < segment.p_filesz; at += sizeof entry) {
            if (!symbol_file_read(&search->file, &entry, sizeof entry, segment.p_offset + at))
                return true;
            if (entry.d_tag == DT_TEXTREL || (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_TEXTREL) != 0))
                return true;
        }
    }
    return false;
}

void search_plan(struct search *search)
{
    struct entries_found *found = &search->found;
    if (is_code_relocated(search))
        search_refuse(found, "its code", "is relocated");
    ranges_sort(search->functions, search->function_count, sizeof search->functions[0]);
    drop_changed(search);
    find_range(search);
    drop_foreign_operators(search);
    plan_heads(search);
    for (size_t i = 0; i < found->count; i++)
        each_target(search, &found->entries[i], look_at_jump);
    search->hit_count = 0;
    find_bounds(search);
    look_at_all_code(search);
    look_at_hits(search);
}
