/* Finds a build's places by what RPython's code always looks like.
 *
 * One pattern is everywhere: the nursery's next object is put behind its free pointer, which is compared with the nursery's
 * top; if it does not fit, collect_and_reserve(collector, size) is called. Each such place has a vote. It needs a thousand
 * places, and nine of ten that agree. The functions that collect pass the names of their sections to the log, and everything
 * else stands in or near a function that is known by then; these places must all agree.
 *
 * The file may be anything. Every loop is bounded by its length. */
#define _GNU_SOURCE
#include "find.h"
#include "find_types.h"
#include "image.h"
#include "instructions.h"

#include <string.h>

enum { LEAST_VOTES = 1000, CANDIDATES = 256 };
/* How far the pattern's other instructions are from its first, and the call from the jump. */
enum { PATTERN_BYTES = 40, CALL_BYTES = 64 };

static bool is_function(const struct image *image, uint64_t address)
{
    return pypy_image_function(image, address).start == address && address != 0;
}

/* ---- votes ---- */

struct choice {
    uint64_t first, second;
    uint32_t votes;
};

struct ballot {
    struct choice choices[CANDIDATES];
    size_t count;
    uint32_t votes;
};

/* Those that come when the table is full are counted, but cannot win. */
static void vote(struct ballot *ballot, uint64_t first, uint64_t second)
{
    ballot->votes++;
    for (size_t i = 0; i < ballot->count; i++) {
        struct choice *choice = &ballot->choices[i];
        if (choice->first == first && choice->second == second) {
            choice->votes++;
            return;
        }
    }
    if (ballot->count < CANDIDATES)
        ballot->choices[ballot->count++] = (struct choice){first, second, 1};
}

static struct choice winner(const struct ballot *ballot, struct pypy_votes *votes)
{
    struct choice best = {0};
    for (size_t i = 0; i < ballot->count; i++) {
        if (ballot->choices[i].votes > best.votes)
            best = ballot->choices[i];
    }
    *votes = (struct pypy_votes){best.votes, ballot->votes};
    return best;
}

static bool is_overwhelming(struct pypy_votes votes)
{
    return votes.winner >= LEAST_VOTES && votes.winner >= votes.all - votes.all / 10;
}

/* ---- the nursery ---- */

/* Votes for the function that is called with `size` soon after `from`. */
static bool vote_for_call(struct ballot *calls, const uint8_t *code, uint64_t from, uint64_t bytes, int32_t size,
                          uint64_t address)
{
    uint64_t collector = 0;
    bool has_size = false;
    for (uint64_t place = from; place < from + CALL_BYTES && place + 8 < bytes; place++) {
        const uint8_t *next = code + place;
        if (next[0] == 0xBE && int_at(next + 1) == size) {
            has_size = true;
        } else if (next[0] == 0x48 && next[1] == 0x8D && next[2] == 0x3D) {
            collector = target(next, 7, address + place);
        } else if (next[0] == 0xE8 && has_size && collector != 0) {
            vote(calls, target(next, 5, address + place), collector);
            return true;
        }
    }
    return false;
}

/* Votes for the nursery if the code at `start` puts an object into it. */
static void vote_for_nursery(struct ballot *nurseries, struct ballot *calls, const struct segment *text,
                             const uint8_t *code, uint64_t start)
{
    const uint8_t *load = code + start;
    unsigned behind, from;
    int32_t size;
    size_t length = read_lea(load + 7, &behind, &from, &size);
    if (length == 0 || from != register_of(load))
        return;
    uint64_t free = target(load, 7, text->address + start), top = 0;
    bool is_stored = false;
    for (uint64_t place = start + 7 + length; place < start + PATTERN_BYTES; place++) {
        const uint8_t *next = code + place;
        bool is_behind = register_of(next) == behind;
        if (is_near(next, 0x89) && is_behind && target(next, 7, text->address + place) == free) {
            is_stored = true;
        } else if ((is_near(next, 0x39) || is_near(next, 0x3B)) && is_behind) {
            top = target(next, 7, text->address + place);
        } else if (is_stored && top != 0 && ((next[0] & 0xF0) == 0x70 || (next[0] == 0x0F && (next[1] & 0xF0) == 0x80))) {
            bool is_short = next[0] != 0x0F;
            uint64_t after = place + (is_short ? 2 : 6);
            uint64_t to = after + (uint64_t)(int64_t)(is_short ? (int8_t)next[1] : int_at(next + 2));
            vote(nurseries, free, top);
            if (to >= text->bytes || !vote_for_call(calls, code, to, text->bytes, size, text->address))
                vote_for_call(calls, code, after, text->bytes, size, text->address);
            return;
        }
    }
}

static bool find_nursery(const struct image *image, struct pypy_build *found, struct pypy_votes *votes)
{
    struct ballot nurseries = {.count = 0}, calls = {.count = 0};
    const struct segment *text = image->code;
    const uint8_t *code = image->file + text->offset;
    for (uint64_t place = 0; place + IMAGE_MARGIN < text->bytes; place++) {
        if (is_near(code + place, 0x8B))
            vote_for_nursery(&nurseries, &calls, text, code, place);
    }
    struct choice nursery = winner(&nurseries, &votes[PYPY_NURSERY]);
    struct choice called = winner(&calls, &votes[PYPY_RESERVE]);
    found->reserve = (uint32_t)called.first;
    found->gc = (uint32_t)called.second;
    found->free = (uint32_t)(nursery.first - called.second);
    found->top = (uint32_t)(nursery.second - called.second);
    return is_overwhelming(votes[PYPY_NURSERY]) && is_overwhelming(votes[PYPY_RESERVE]) &&
           is_function(image, called.first) && found->free < UINT16_MAX && found->top < UINT16_MAX;
}

/* ---- the collections, and the log ---- */

/* A section of the log. */
struct section {
    const char *name;
    uint64_t at[8]; /* where the text is in the file */
    size_t count;
    struct ballot functions, starts; /* that name it, and what they call first with it */
};

/* Searches read-only segments only, because strings of the program contain the text as well. */
static void find_text(const struct image *image, struct section *section)
{
    size_t length = strlen(section->name) + 1;
    for (size_t i = 0; i < image->segment_count; i++) {
        const struct segment *segment = &image->segments[i];
        const uint8_t *start = image->file + segment->offset, *end = start + segment->bytes, *next = start;
        if (segment->is_writable)
            continue;
        while (section->count < 8 && next < end &&
               (next = memmem(next, (size_t)(end - next), section->name, length)) != NULL) {
            if (next > start && next[-1] == 0)
                section->at[section->count++] = segment->address + (uint64_t)(next - start);
            next++;
        }
    }
}

static void vote_for_section(const struct image *image, struct section *section, const uint8_t *lea, uint64_t address)
{
    uint64_t text = target(lea, 7, address);
    for (size_t i = 0; i < section->count; i++) {
        if (section->at[i] != text)
            continue;
        struct function function = pypy_image_function(image, address);
        bool is_first = section->functions.count == 0 || section->functions.choices[0].first != function.start;
        vote(&section->functions, function.start, 0);
        for (size_t place = 7; is_first && place < 32; place++) {
            uint64_t to = target(lea + place, 5, address + place);
            if (lea[place] == 0xE8 && is_function(image, to)) {
                vote(&section->starts, to, 0);
                return;
            }
        }
    }
}

/* Votes for the data that a function asks by `testb $1, distance(%rip)`. */
static void vote_for_tests(const struct image *image, struct ballot *ballot, struct function function)
{
    const uint8_t *code = pypy_image_at(image, function.start, function.end - function.start + IMAGE_MARGIN);
    for (uint64_t place = 0; code != NULL && place < function.end - function.start; place++) {
        const uint8_t *next = code + place;
        if (next[0] == 0xF6 && next[1] == 0x05 && next[6] == 1)
            vote(ballot, target(next, 6, function.start + place) + 1, 0);
    }
}

static size_t calls_of(const struct image *image, struct function function, uint64_t called)
{
    size_t count = 0;
    const uint8_t *code = pypy_image_at(image, function.start, function.end - function.start + IMAGE_MARGIN);
    for (uint64_t place = 0; code != NULL && place < function.end - function.start; place++)
        count += code[place] == 0xE8 && target(code + place, 5, function.start + place) == called;
    return count;
}

static bool find_log(const struct image *image, struct section sections[2], struct pypy_build *found,
                     struct pypy_votes *votes)
{
    struct pypy_votes parts[4];
    uint64_t collect = winner(&sections[0].functions, &parts[0]).first;
    uint64_t step = winner(&sections[1].functions, &parts[1]).first;
    uint64_t start = winner(&sections[0].starts, &parts[2]).first;
    bool is_same = winner(&sections[1].starts, &parts[3]).first == start;
    for (size_t i = 0; i < 2; i++) {
        votes[PYPY_COLLECTIONS].winner += parts[i].winner;
        votes[PYPY_COLLECTIONS].all += parts[i].all;
    }
    for (size_t i = 0; i < 4; i++) {
        if (!pypy_is_unanimous(parts[i]) || !is_same)
            return false;
    }
    /* The log's functions stand behind each other in one file of C. */
    uint64_t stop = pypy_image_function(image, start).end;
    struct ballot tests = {.count = 0};
    vote_for_tests(image, &tests, pypy_image_function(image, collect));
    vote_for_tests(image, &tests, pypy_image_function(image, step));
    uint64_t is_logged = winner(&tests, &votes[PYPY_LOG]).first;
    found->collect = (uint32_t)collect;
    found->step = (uint32_t)step;
    found->log_start = (uint32_t)start;
    found->log_stop = (uint32_t)stop;
    found->log_sections = (uint32_t)is_logged;
    /* collect_and_reserve collects. */
    return votes[PYPY_LOG].winner >= 4 && pypy_is_unanimous(votes[PYPY_LOG]) && is_function(image, stop) &&
           calls_of(image, pypy_image_function(image, step), stop) > 0 &&
           calls_of(image, pypy_image_function(image, found->reserve), collect) > 0;
}

/* ---- the collector's fields ---- */

/* The field that is set to 0, 1, 2 and 3, the states. */
static bool find_state(const struct image *image, struct pypy_build *found, struct pypy_votes *votes)
{
    struct function function = pypy_image_function(image, found->step);
    const uint8_t *code = pypy_image_at(image, function.start, function.end - function.start + IMAGE_MARGIN);
    struct ballot values = {.count = 0};
    for (uint64_t place = 0; code != NULL && place < function.end - function.start; place++) {
        int32_t field;
        if (read_field(code + place, 0xC7, &field) == 7 && (code[place + 2] & 0x38) == 0 && field > 0 &&
            (uint32_t)int_at(code + place + 7) < 4)
            vote(&values, (uint64_t)field, (uint64_t)int_at(code + place + 7));
    }
    for (size_t i = 0; i < values.count; i++) {
        unsigned met = 0;
        for (size_t j = 0; j < values.count; j++) {
            if (values.choices[j].first == values.choices[i].first)
                met |= 1u << values.choices[j].second;
        }
        if (met == 0xF && found->state != values.choices[i].first) {
            found->state = (uint32_t)values.choices[i].first;
            votes[PYPY_STATE].all++;
        }
    }
    votes[PYPY_STATE].winner = votes[PYPY_STATE].all > 0;
    return pypy_is_unanimous(votes[PYPY_STATE]);
}

/* Votes for a double in the collector that is stored, where the code then puts `free` to `top`. */
static void vote_for_threshold(struct ballot *ballot, const struct pypy_build *found, const uint8_t *code, uint64_t address)
{
    uint64_t field = target(code, 8, address) - found->gc;
    if (field >= UINT16_MAX)
        return;
    for (size_t place = 8; place < 40; place++) {
        const uint8_t *next = code + place;
        if (is_near(next, 0x8B) && target(next, 7, address + place) == found->gc + found->top && is_near(next + 7, 0x89) &&
            register_of(next) == register_of(next + 7) && target(next + 7, 7, address + place + 7) == found->gc + found->free) {
            vote(ballot, field, 0);
            return;
        }
    }
}

/* `mov large(%collector),%r; add small,%r` in the step of a major collection. */
static void find_used(const struct image *image, struct pypy_build *found, struct pypy_votes *votes)
{
    struct function function = pypy_image_function(image, found->step);
    const uint8_t *code = pypy_image_at(image, function.start, function.end - function.start + IMAGE_MARGIN);
    struct ballot sums = {.count = 0};
    for (uint64_t place = 0; code != NULL && place < function.end - function.start; place++) {
        const uint8_t *next = code + place;
        int32_t field;
        if (read_field(next, 0x8B, &field) == 7 && field > 0 && is_near(next + 7, 0x03) &&
            register_of(next) == register_of(next + 7))
            vote(&sums, (uint64_t)field, target(next + 7, 7, function.start + place + 7));
    }
    struct choice sum = winner(&sums, &votes[PYPY_USED]);
    if (pypy_is_unanimous(votes[PYPY_USED])) {
        found->large_bytes = (uint32_t)sum.first;
        found->small_bytes = (uint32_t)sum.second;
    }
}

/* ---- compiled code ---- */

/* vmprof_write_header_for_jit_addr writes 6 and 3, and compares with -1. */
static void vote_for_compiled(const struct image *image, struct ballot *ballot, uint64_t address)
{
    struct function function = pypy_image_function(image, address);
    const uint8_t *code = pypy_image_at(image, function.start, function.end - function.start + IMAGE_MARGIN);
    bool has_6 = false, has_end = false;
    if (code == NULL || function.end - function.start > 2048)
        return;
    for (uint64_t place = 0; place < function.end - function.start; place++) {
        const uint8_t *next = code + place;
        int32_t value;
        has_6 |= reads_stored_value(next, &value) && value == 6;
        has_end |= (next[0] & 0xF8) == 0x48 && next[1] == 0x83 && (next[2] & 0xF8) == 0xF8 && next[3] == 0xFF;
    }
    if (has_6 && has_end && (ballot->count == 0 || ballot->choices[ballot->count - 1].first != function.start))
        vote(ballot, function.start, 0);
}

/* All that takes another look at all of the code. */
static bool search_code(const struct image *image, struct pypy_build *found, struct pypy_votes *votes)
{
    struct section sections[2] = {{.name = "gc-minor"}, {.name = "gc-collect-step"}};
    struct ballot thresholds = {.count = 0}, compiled = {.count = 0};
    const struct segment *text = image->code;
    const uint8_t *code = image->file + text->offset;
    find_text(image, &sections[0]);
    find_text(image, &sections[1]);
    for (uint64_t place = 0; place + IMAGE_MARGIN < text->bytes; place++) {
        const uint8_t *next = code + place;
        uint64_t address = text->address + place;
        int32_t value;
        if (is_near(next, 0x8D)) {
            vote_for_section(image, &sections[0], next, address);
            vote_for_section(image, &sections[1], next, address);
        } else if (next[0] == 0xF2 && next[1] == 0x0F && next[2] == 0x11 && (next[3] & 0xC7) == 0x05) {
            vote_for_threshold(&thresholds, found, next, address);
        } else if (next[1] == 0xC7 && reads_stored_value(next, &value) && value == 3) {
            vote_for_compiled(image, &compiled, address);
        }
    }
    found->threshold = (uint32_t)winner(&thresholds, &votes[PYPY_THRESHOLD]).first;
    uint64_t function = winner(&compiled, &votes[PYPY_COMPILED]).first;
    if (pypy_is_unanimous(votes[PYPY_COMPILED]))
        found->frames_of_code = (uint32_t)function;
    return find_log(image, sections, found, votes);
}

/* ---- the program's start ---- */

/* pypy_main_startup is exported. It takes the interpreter's lock for its thread, and then calls entry_point(argc, argv). */
static bool find_start(const struct image *image, struct pypy_build *found, struct pypy_votes *votes)
{
    struct function function = pypy_image_function(image, pypy_image_exported(image, "pypy_main_startup"));
    const uint8_t *code = pypy_image_at(image, function.start, function.end - function.start + IMAGE_MARGIN);
    uint64_t bytes = function.end - function.start, place = 0;
    int32_t ident = 0;
    unsigned loaded = 16;
    /* mov ident(%thread),%r; lock cmpxchg %r,lock */
    for (; code != NULL && place < bytes; place++) {
        const uint8_t *next = code + place;
        int32_t field;
        if (read_field(next, 0x8B, &field) != 0 && field > 0) {
            ident = field;
            loaded = register_of(next);
        } else if (next[0] == 0xF0 && (next[1] & 0xFB) == 0x48 && next[2] == 0x0F && next[3] == 0xB1 && (next[4] & 0xC7) == 0x05) {
            if (loaded != ((next[1] >> 2 & 1u) << 3 | (next[4] >> 3 & 7u)))
                return false;
            found->lock = (uint32_t)target(next, 9, function.start + place);
            found->ident = (uint32_t)ident;
            break;
        }
    }
    /* movslq %argc,%rdi; mov %argv,%rsi; call */
    struct ballot starts = {.count = 0};
    bool has_count = false, has_values = false;
    for (; found->lock != 0 && place < bytes; place++) {
        const uint8_t *next = code + place;
        has_count |= (next[0] & 0xFC) == 0x48 && next[1] == 0x63 && (next[2] & 0xF8) == 0xF8;
        has_values |= (next[0] & 0xFB) == 0x48 && next[1] == 0x89 && (next[2] & 0xC7) == 0xC6;
        if (next[0] == 0xE8 && is_function(image, target(next, 5, function.start + place))) {
            if (has_count && has_values)
                vote(&starts, target(next, 5, function.start + place), 0);
            has_count = has_values = false;
        }
    }
    found->entry = (uint32_t)winner(&starts, &votes[PYPY_START]).first;
    return pypy_is_unanimous(votes[PYPY_START]);
}

/* ---- all ---- */

static bool can_jump_from(const struct image *image, uint32_t function)
{
    const uint8_t *code = pypy_image_at(image, function, 32);
    size_t unused;
    return code != NULL && pypy_beginning(code + pypy_mark_bytes(code), &unused) != 0;
}

const char *pypy_find(const uint8_t *file, size_t length, const struct pypy_search *search, struct pypy_build *found,
                      struct pypy_votes votes[PYPY_BALLOTS])
{
    struct image image;
    *found = (struct pypy_build){0};
    memset(votes, 0, PYPY_BALLOTS * sizeof *votes);
    if (!pypy_image_read(&image, file, length))
        return "it is not a library for x86-64 with a table for unwinders";
    pypy_image_id(&image, found->id);
    if (!find_nursery(&image, found, votes))
        return "too few places in its code agree on the nursery";
    if (!search_code(&image, found, votes))
        return "the functions that collect are not clear";
    if (!find_state(&image, found, votes) || !pypy_is_unanimous(votes[PYPY_THRESHOLD]))
        return "the collector's fields are not clear";
    if (!find_start(&image, found, votes))
        return "the program's start is not clear";
    const uint32_t places[] = {found->reserve, found->collect, found->step, found->entry, found->log_start, found->log_stop};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (!can_jump_from(&image, places[i]))
            return "a function begins with an instruction that cannot be moved";
    }
    if (!pypy_find_types(&image, search, found, votes))
        return "its types are not clear";
    find_used(&image, found, votes);
    found->thread_bytes = image.thread_bytes < UINT16_MAX ? (uint32_t)image.thread_bytes : 0;
    if (search->uncompress != NULL)
        pypy_find_codes(&image, found, (const char *)search->room, votes);
    return NULL;
}

const char *pypy_ballot_name(enum pypy_ballot ballot)
{
    static const char *const names[PYPY_BALLOTS] = {
        [PYPY_NURSERY] = "nursery",      [PYPY_RESERVE] = "collect_and_reserve", [PYPY_COLLECTIONS] = "collections",
        [PYPY_LOG] = "log",              [PYPY_STATE] = "state",                 [PYPY_THRESHOLD] = "threshold",
        [PYPY_USED] = "bytes in use",    [PYPY_START] = "start",                 [PYPY_TYPES] = "types",
        [PYPY_CODES] = "code objects",   [PYPY_COMPILED] = "compiled code",
    };
    return names[ballot];
}
