/* Which Erlang function an address of compiled code belongs to, by BEAM's own table of loaded modules.
 *
 * BEAM keeps three copies of the table, uses one of them, and replaces another when code is loaded. A copy is a sorted list of
 * address ranges, one for each module. A range begins with the module's header: the number of functions and, further on, where each
 * begins. A function's module, name and arity are stored in front of it. No version exports the table, so we find it by its
 * contents. The header's fields differ between versions, so we find the list of functions by what it points to. If either search
 * fails, there are no frames.
 *
 * All of it is read as foreign memory (foreign.h): a copy that is not in use may have been given back. */
#define _GNU_SOURCE
#include "beam.h"
#include "kit/foreign.h"
#include "kit/memory.h"
#include "kit/names.h"
#include "kit/thread_pointer.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum {
    COPIES = 3,
    MOST_MODULES = 1 << 16,
    MOST_FUNCTIONS = 1 << 17,
    HEADER_BYTES = 512,
    KNOWN = 1 << 14,
    INFO = 16, /* in front of a function: two words, and then struct info */
    MOST_ARITY = 255,
    MOST_NAME = 256 * 4,
    ENCODING_LATIN1 = 1,
    ENCODING_UTF8 = 2, /* since OTP 26 */
};

struct range {
    uintptr_t start, end;
};

/* One copy of BEAM's table. */
struct copy {
    uintptr_t ranges;
    int64_t count, allocated;
    uintptr_t middle;
};

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static int (*atom_text)(void *environment, uintptr_t atom, char *text, unsigned room, int encoding);
static struct names functions;
static struct foreign_lines *lines;
static struct foreign_reader reader;
static const struct copy *copies; /* BEAM's; NULL: not found yet */
static unsigned attempts;
static size_t functions_in_header; /* 0: not known yet */
static uint32_t generation;
static struct range *ranges; /* ours, of the copy in use */
static size_t count;
static struct known {
    uintptr_t address;
    uint32_t generation, number;
} *known;

static bool is_atom(uintptr_t term)
{
    return (term & 0x3f) == 0x0b;
}

/* ---- modules ---- */

struct info {
    uintptr_t module, function, arity;
};

static bool read_info(uintptr_t at, struct info *info)
{
    return foreign_read(&reader, at + INFO, info, sizeof *info) && is_atom(info->module) && is_atom(info->function) &&
           info->arity <= MOST_ARITY;
}

/* Whether the header's list of functions begins there. The list has one more address, which is where the last one ends. */
static bool are_functions(const struct range *module, size_t offset, size_t of_module)
{
    struct info first, info;
    uintptr_t before = module->start;
    for (size_t i = 0; i <= of_module; i++) {
        uintptr_t at = foreign_word(&reader, module->start + offset + i * sizeof at);
        if (at <= before || at > module->end || (i < of_module && at % 4 != 0))
            return false;
        if (i < of_module && (!read_info(at, i == 0 ? &first : &info) || (i > 0 && info.module != first.module)))
            return false;
        before = at;
    }
    return true;
}

static size_t functions_of(uintptr_t start)
{
    size_t of_module = foreign_word(&reader, start);
    return of_module < MOST_FUNCTIONS ? of_module : 0;
}

/* The place that fits several modules, and that no other place does. */
static size_t find_functions(const struct range *modules, size_t total)
{
    enum { LEAST_FUNCTIONS = 3, MOST_LOOKED_AT = 40, ENOUGH = 3 };
    size_t found = 0, fits = 0;
    for (size_t i = 0; i < total && fits < ENOUGH; i++) {
        size_t of_module = functions_of(modules[i].start), here = 0;
        if (of_module < LEAST_FUNCTIONS || of_module > MOST_LOOKED_AT)
            continue;
        for (size_t offset = 5 * sizeof(uintptr_t); offset < HEADER_BYTES; offset += sizeof(uintptr_t)) {
            if (!are_functions(&modules[i], offset, of_module))
                continue;
            if (here != 0)
                return 0;
            here = offset;
        }
        if (here == 0 || (found != 0 && found != here))
            return 0;
        found = here;
        fits++;
    }
    return fits == ENOUGH ? found : 0;
}

/* ---- BEAM's table ---- */

static bool is_copy(const struct copy *copy)
{
    return copy->count > 0 && copy->count <= copy->allocated && copy->allocated <= MOST_MODULES && copy->ranges != 0 &&
           copy->ranges % sizeof(uintptr_t) == 0 && copy->middle >= copy->ranges &&
           (copy->middle - copy->ranges) % sizeof(struct range) == 0 &&
           (copy->middle - copy->ranges) / sizeof(struct range) < (size_t)copy->allocated;
}

/* Takes over a copy of the table, if it is one. */
static bool take_over(const struct copy *copy)
{
    size_t total = (size_t)copy->count;
    struct range *to = ranges + MOST_MODULES; /* the second half, until it is known to be good */
    if (!foreign_copy(copy->ranges, to, total * sizeof *to))
        return false;
    for (size_t i = 0; i < total; i++)
        if (to[i].start == 0 || to[i].start % 4 != 0 || to[i].end < to[i].start ||
            (i > 0 && (to[i].start <= to[i - 1].start || to[i].start < to[i - 1].end)))
            return false;
    if (functions_in_header == 0)
        functions_in_header = find_functions(to, total);
    if (functions_in_header == 0)
        return false;
    memcpy(ranges, to, total * sizeof *to);
    count = total;
    generation++;
    return true;
}

static bool look_for_copy(void *argument, const uintptr_t *place, size_t words)
{
    const struct copy *copy = (const struct copy *)place;
    (void)argument;
    if (words * sizeof *place < sizeof *copy || !is_copy(copy) || !take_over(copy))
        return false;
    copies = copy;
    return true;
}

/* The first of the copies that is found may be any of them. Those around it that are none are never taken over. */
enum { NEIGHBOURS = COPIES - 1, WINDOW = 2 * NEIGHBOURS + 1 };
static struct copy window[WINDOW];

/* A copy that has changed is the one in use from now on. At first it is the one with most modules. While a copy is being filled, its
 * rows are not in order yet, and it is looked at again. */
static void look_again(void)
{
    size_t best = WINDOW;
    struct copy now[WINDOW];
    if (!foreign_copy((uintptr_t)(copies - NEIGHBOURS), now, sizeof now))
        return;
    for (size_t i = 0; i < WINDOW; i++) {
        if (memcmp(&now[i], &window[i], offsetof(struct copy, middle)) != 0 && is_copy(&now[i]) &&
            (best == WINDOW || now[i].count > now[best].count))
            best = i;
    }
    if (best == WINDOW || !take_over(&now[best]))
        return;
    memcpy(window, now, sizeof window);
}

bool beam_code_begin(void)
{
    foreign_lines_begin(lines, (uintptr_t)thread_pointer());
    foreign_reader_begin(&reader, lines);
    if (copies == NULL && beam_is_due(&attempts))
        beam_image_search(look_for_copy, NULL);
    if (copies != NULL)
        look_again();
    return copies != NULL && count > 0;
}

void beam_code_end(void)
{
    foreign_lines_end(lines, (uintptr_t)thread_pointer());
}

/* ---- functions ---- */

static void copy_atom(uintptr_t atom, char *to)
{
    if (atom_text(NULL, atom, to, MOST_NAME, ENCODING_UTF8) == 0 && atom_text(NULL, atom, to, MOST_NAME, ENCODING_LATIN1) == 0)
        to[0] = 0;
}

/* Elixir's modules have a prefix that nobody writes. Its anonymous functions are named as its own stack traces do: -NAME/1-fun-0-/2
 * is the first one in NAME/1. */
static void name_function(const struct info *info, char *name, size_t room)
{
    static const char elixir[] = "Elixir.", anonymous[] = "-fun-";
    char module[MOST_NAME], function[MOST_NAME];
    unsigned arity = (unsigned)info->arity;
    copy_atom(info->module, module);
    copy_atom(info->function, function);
    if (strncmp(module, elixir, sizeof elixir - 1) != 0) {
        snprintf(name, room, "%s:%s/%u", module, function, arity);
        return;
    }
    const char *shown = module + sizeof elixir - 1, *end = strstr(function, anonymous);
    if (function[0] == '-' && end != NULL && end > function)
        snprintf(name, room, "anonymous fn/%u in %s.%.*s", arity, shown, (int)(end - function - 1), function + 1);
    else
        snprintf(name, room, "%s.%s/%u", shown, function, arity);
}

static const struct range *range_of(uintptr_t address)
{
    size_t first = 0, last = count;
    while (first < last) {
        size_t middle = first + (last - first) / 2;
        if (ranges[middle].start <= address)
            first = middle + 1;
        else
            last = middle;
    }
    return first > 0 && address < ranges[first - 1].end ? &ranges[first - 1] : NULL;
}

static uint32_t look_up(uintptr_t address)
{
    char name[3 * MOST_NAME];
    struct info info;
    const struct range *range = range_of(address);
    if (range == NULL)
        return 0;
    uintptr_t list = range->start + functions_in_header;
    size_t first = 0, last = functions_of(range->start);
    while (first < last) {
        size_t middle = first + (last - first) / 2;
        uintptr_t at = foreign_word(&reader, list + middle * sizeof at);
        if (at <= range->start || at > range->end)
            return 0;
        if (at <= address)
            first = middle + 1;
        else
            last = middle;
    }
    if (first == 0 || !read_info(foreign_word(&reader, list + (first - 1) * sizeof list), &info))
        return 0;
    name_function(&info, name, sizeof name);
    return names_function(&functions, hooks, heap, name, "", 0);
}

uint32_t beam_code_function(uintptr_t return_address)
{
    if (count == 0 || return_address <= ranges[0].start || return_address > ranges[count - 1].end)
        return 0;
    struct known *place = &known[(return_address >> 2) * UINT64_C(0x9e3779b97f4a7c15) >> 40 & (KNOWN - 1)];
    if (place->address != return_address || place->generation != generation)
        *place = (struct known){return_address, generation, look_up(return_address - 1)};
    return place->number;
}

/* ---- start ---- */

bool beam_code_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap)
{
    void *function = dlsym(RTLD_DEFAULT, "enif_get_atom");
    hooks = the_hooks;
    heap = the_heap;
    memcpy(&atom_text, &function, sizeof function);
    lines = memory_map(sizeof *lines);
    known = memory_map(KNOWN * sizeof *known);
    ranges = memory_map(2 * MOST_MODULES * sizeof *ranges);
    return atom_text != NULL && lines != NULL && known != NULL && ranges != NULL && names_make(&functions);
}

void beam_code_after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
}
