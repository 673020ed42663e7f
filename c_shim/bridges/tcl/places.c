/* Files and lines of what runs.
 *
 * Tcl has a CmdFrame for every command that is being called. It has the command's line where it was read from a file, or the
 * position in the byte code that called it. Lines of a byte code are in a table of the interpreter's, by the addresses of byte
 * codes.
 *
 * What byte code does without calling a command has no CmdFrame, and no function of Tcl's stores the position: it is a variable
 * of the function that runs byte code. The code itself is found on the interpreter's own stack, in a block that has its
 * CmdFrame, ready to be used. Its position is then the first word on the thread's stack that points into the code. If there is
 * none, the line is not known. */
#define _GNU_SOURCE
#include "tcl.h"

enum { AT_EVAL = 0, AT_BYTE_CODE = 2, AT_SOURCE = 4 };
#define MOST_COMMANDS 65536
#define MOST_ENTRIES 64
#define MOST_MARKERS 8
/* In a block that begins with a byte code: words among which its CmdFrame begins. */
#define WORDS_TO_COMMAND 8
/* Words of the thread's stack that are looked at. */
#define MOST_WORDS 2048
/* Before a number of four bytes. */
#define LONG_NUMBER 0xff
#define ALIGNMENT 16

#define KNOWN 4096
/* By the byte code, what it was made of, and the position in it. */
struct tcl_known_places {
    struct {
        uintptr_t code, places, file;
        uint64_t offset;
        uint32_t line, is_known;
    } entries[KNOWN];
};
_Static_assert(sizeof(struct tcl_known_places) == TCL_KNOWN_PLACES_BYTES, "the size that tcl.h tells");

/* ---- byte code ---- */

struct code {
    uintptr_t address, start, offsets, lengths, sources;
    int64_t commands, bytes;
};

/* False: it is no byte code of this interpreter. */
static bool read_code(struct tcl_view *view, uintptr_t address, struct code *code)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    if (address == 0 || address % sizeof(uintptr_t) != 0 || foreign_word(reader, address + layout->code_handle) != view->handle)
        return false;
    *code = (struct code){
        .address = address,
        .start = foreign_word(reader, address + layout->code_start),
        .offsets = foreign_word(reader, address + layout->code_offsets),
        .lengths = foreign_word(reader, address + layout->code_lengths),
        .sources = foreign_word(reader, address + layout->code_sources),
        .commands = tcl_count(view, address + layout->code_commands),
        .bytes = tcl_count(view, address + layout->code_bytes),
    };
    return code->start > address && code->bytes > 0 && code->commands >= 0 && code->commands <= MOST_COMMANDS;
}

/* The next number of a table; false: it cannot be read. */
static bool read_number(struct tcl_view *view, uintptr_t *at, int64_t *number)
{
    uint8_t bytes[5];
    if (!foreign_read(&view->reader, *at, bytes, 1))
        return false;
    if (bytes[0] != LONG_NUMBER) {
        *number = (int8_t)bytes[0];
        *at += 1;
        return true;
    }
    if (!foreign_read(&view->reader, *at, bytes, sizeof bytes))
        return false;
    *number = (int32_t)((uint32_t)bytes[1] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 8 | bytes[4]);
    *at += sizeof bytes;
    return true;
}

/* The innermost command at a position of the code: its number, and where it begins in the source. */
static bool find_command(struct tcl_view *view, const struct code *code, int64_t position, int64_t *number, int64_t *source)
{
    uintptr_t offsets = code->offsets, lengths = code->lengths, sources = code->sources;
    int64_t at = 0, source_at = 0, best = INT64_MAX;
    for (int64_t i = 0; i < code->commands; i++) {
        int64_t distance, length, source_distance;
        if (!read_number(view, &offsets, &distance) || !read_number(view, &lengths, &length) ||
            !read_number(view, &sources, &source_distance))
            return false;
        at += distance;
        source_at += source_distance;
        if (at > position)
            break;
        if (position >= at + length || position - at > best)
            continue;
        best = position - at;
        *number = i;
        *source = source_at;
    }
    return best != INT64_MAX;
}

/* ---- lines ---- */

/* The value of the entry with this key in a table whose keys are addresses, or 0. */
static uintptr_t value_of(struct tcl_view *view, uintptr_t table, uintptr_t key)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    int32_t shift;
    uint64_t mask = (uint64_t)tcl_count(view, table + layout->table_mask);
    uintptr_t buckets = foreign_word(reader, table + layout->table_buckets);
    if (table == 0 || buckets == 0 || !foreign_read(reader, table + layout->table_shift, &shift, sizeof shift) || shift < 0 || shift > 63)
        return 0;
    uint64_t bucket = (uint64_t)key * 1103515245 >> shift & mask;
    uintptr_t entry = foreign_word(reader, buckets + bucket * sizeof(uintptr_t));
    for (int i = 0; i < MOST_ENTRIES && entry != 0; i++) {
        if (foreign_word(reader, entry + layout->entry_key) == key)
            return foreign_word(reader, entry + layout->entry_value);
        entry = foreign_word(reader, entry + layout->entry_next);
    }
    return 0;
}

static uint32_t first_line(struct tcl_view *view, uintptr_t lines)
{
    int64_t line = lines == 0 ? 0 : tcl_number(view, lines, view->tcl->layout->line_bytes);
    return line > 0 && line < INT32_MAX ? (uint32_t)line : 0;
}

/* The line of the command that begins at `source`, which is most often the entry `number` of the table. */
static uint32_t line_in(struct tcl_view *view, uintptr_t places, int64_t number, int64_t source)
{
    const struct tcl_layout *layout = view->tcl->layout;
    uintptr_t entries = foreign_word(&view->reader, places + layout->places_commands);
    int64_t used = tcl_count(view, places + layout->places_used);
    if (used > MOST_COMMANDS)
        return 0;
    for (int64_t i = -1; i < used; i++) {
        int64_t entry = i < 0 ? number : i;
        uintptr_t at = entries + (uint64_t)entry * layout->place_bytes;
        if (entry < used && tcl_count(view, at + layout->place_source) == source)
            return first_line(view, foreign_word(&view->reader, at + layout->place_line));
    }
    return 0;
}

static struct tcl_place of_position(struct tcl_view *view, const struct code *code, uintptr_t places, int64_t position)
{
    const struct tcl_layout *layout = view->tcl->layout;
    int64_t number = 0, source = 0;
    int32_t type;
    if (!foreign_read(&view->reader, places + layout->places_type, &type, sizeof type) || type != AT_SOURCE ||
        !find_command(view, code, position, &number, &source))
        return (struct tcl_place){0};
    return (struct tcl_place){foreign_word(&view->reader, places + layout->places_path), line_in(view, places, number, source)};
}

static struct tcl_place of_code(struct tcl_view *view, struct tcl_known_places *known, uintptr_t address, uintptr_t pc)
{
    struct code code;
    if (!read_code(view, address, &code) || pc < code.start || pc - code.start >= (uint64_t)code.bytes)
        return (struct tcl_place){0};
    uintptr_t lines = foreign_word(&view->reader, view->interpreter + view->tcl->layout->lines);
    uintptr_t places = value_of(view, lines, address);
    if (places == 0)
        return (struct tcl_place){0};
    uint64_t offset = (pc - code.start) | (uint64_t)code.bytes << 32;
    size_t hash = ((address >> 3) ^ offset * 31) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    __auto_type entry = &known->entries[hash % KNOWN];
    if (entry->code != address || entry->places != places || entry->offset != offset || !entry->is_known) {
        struct tcl_place found = of_position(view, &code, places, (int64_t)(pc - code.start));
        *entry = (__typeof__(*entry)){address, places, found.file, offset, found.line, true};
    }
    return (struct tcl_place){entry->file, entry->line};
}

/* On trial: of a command that byte code calls. */
static void check(struct tcl_view *view, uintptr_t address, uintptr_t pc)
{
    struct code code;
    char file[2];
    if (!read_code(view, address, &code) || pc < code.start || pc - code.start >= (uint64_t)code.bytes) {
        tcl_trial_found_other(view);
        return;
    }
    uintptr_t places = value_of(view, foreign_word(&view->reader, view->interpreter + view->tcl->layout->lines), address);
    /* What `eval` runs is in no file. */
    if (places == 0)
        return;
    struct tcl_place place = of_position(view, &code, places, (int64_t)(pc - code.start));
    tcl_places_copy_file(view, place.file, file, sizeof file);
    if (file[0] != '/')
        return;
    if (place.line > 0)
        tcl_trial_found_place(view);
    else
        tcl_trial_found_other(view);
}

struct tcl_place tcl_places_of_command(struct tcl_view *view, struct tcl_known_places *known, uintptr_t at)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    int32_t type;
    if (!foreign_read(reader, at, &type, sizeof type))
        return (struct tcl_place){0};
    if (type == AT_BYTE_CODE) {
        uintptr_t code = foreign_word(reader, at + layout->at_code), pc = foreign_word(reader, at + layout->at_pc);
        if (view->is_trial)
            check(view, code, pc);
        return of_code(view, known, code, pc);
    }
    if (type != AT_SOURCE)
        return (struct tcl_place){0};
    return (struct tcl_place){foreign_word(reader, at + layout->at_path), first_line(view, foreign_word(reader, at + layout->at_line))};
}

/* ---- byte code that runs ---- */

/* Whether the block of the interpreter's stack is that of byte code which has called no command. */
static bool is_running(struct tcl_view *view, uintptr_t block, uintptr_t frame, uintptr_t at, struct code *code)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    uintptr_t address = foreign_word(reader, block);
    if (!read_code(view, address, code))
        return false;
    for (uintptr_t command = block + sizeof(uintptr_t); command <= block + WORDS_TO_COMMAND * sizeof(uintptr_t);
         command += sizeof(uintptr_t)) {
        int32_t type;
        if (foreign_read(reader, command, &type, sizeof type) && type == AT_BYTE_CODE &&
            foreign_word(reader, command + layout->at_code) == address)
            return foreign_word(reader, command + layout->at_frame) == frame && foreign_word(reader, command + layout->at_next) == at;
    }
    return false;
}

/* Blocks begin behind markers, aligned, and each marker is the address of the one before. */
static bool find_running(struct tcl_view *view, uintptr_t frame, uintptr_t at, struct code *code)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct foreign_reader *reader = &view->reader;
    uintptr_t environment = foreign_word(reader, view->interpreter + layout->environment);
    uintptr_t stack = foreign_word(reader, environment + layout->environment_stack);
    uintptr_t marker = foreign_word(reader, stack + layout->stack_marker);
    for (int i = 0; i < MOST_MARKERS && marker != 0; i++) {
        if (is_running(view, (marker + ALIGNMENT) & ~(uintptr_t)(ALIGNMENT - 1), frame, at, code))
            return true;
        marker = foreign_word(reader, marker);
    }
    return false;
}

static uintptr_t find_position(struct tcl_view *view, const struct code *code)
{
    const struct foreign_range *stack = &view->reader.owned[0];
    uintptr_t top = tcl_interpreters_top_of_stack(stack);
    size_t words = (stack->end - top) / sizeof(uintptr_t);
    for (size_t i = 0; i < words && i < MOST_WORDS; i++) {
        uintptr_t word = ((const uintptr_t *)top)[i];
        if (word >= code->start && word - code->start < (uint64_t)code->bytes)
            return word;
    }
    return 0;
}

bool tcl_places_of_running(struct tcl_view *view, struct tcl_known_places *known, uintptr_t frame, uintptr_t at,
                           struct tcl_place *place)
{
    struct code code;
    if (!find_running(view, frame, at, &code))
        return false;
    uintptr_t pc = find_position(view, &code);
    *place = of_code(view, known, code.address, pc == 0 ? code.start : pc);
    if (pc == 0)
        place->line = 0;
    return true;
}

struct tcl_place tcl_places_of_body(struct tcl_view *view, struct tcl_known_places *known, uintptr_t procedure)
{
    const struct tcl_layout *layout = view->tcl->layout;
    struct code code;
    uintptr_t body = foreign_word(&view->reader, procedure + layout->procedure_body);
    if (body == 0 || !read_code(view, foreign_word(&view->reader, body + layout->object_value), &code))
        return (struct tcl_place){0};
    return of_code(view, known, code.address, code.start);
}

void tcl_places_copy_file(struct tcl_view *view, uintptr_t file, char *to, size_t room)
{
    const struct tcl_layout *layout = view->tcl->layout;
    uintptr_t text = file == 0 ? 0 : foreign_word(&view->reader, file + layout->object_text);
    int64_t length = file == 0 ? 0 : tcl_count(view, file + layout->object_length);
    to[0] = 0;
    if (text == 0 || length <= 0)
        return;
    size_t bytes = (uint64_t)length < room - 1 ? (size_t)length : room - 1;
    to[foreign_read(&view->reader, text, to, bytes) ? bytes : 0] = 0;
}
