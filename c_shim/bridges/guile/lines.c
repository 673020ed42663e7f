/* Lines of Guile's compiled code: a program of DWARF's, of version 2 to 4, for each image.
 *
 * A line program can only be decoded from its start, and a large module has tens of thousands of rows. So every search leaves marks as
 * it decodes, and later searches start at the last mark before their address. */
#define _GNU_SOURCE
#include "guile.h"
#include "kit/foreign.h"
#include "kit/lock.h"
#include "kit/memory.h"

enum { COPY = 1, ADVANCE_PC, ADVANCE_LINE, SET_FILE, SET_COLUMN, NEGATE, SET_BLOCK, ADD_PC, FIXED_ADVANCE_PC };
enum { END_SEQUENCE = 1, SET_ADDRESS = 2 };
#define MOST_FILES 64
#define MOST_PROGRAM (1 << 24)

/* Reads the program from memory that may be gone, part by part. */
struct cursor {
    uintptr_t at, end;
    uintptr_t start_of_copy, end_of_copy;
    bool has_failed;
    uint8_t copy[1024];
};

static uint8_t byte_at(struct cursor *cursor)
{
    if (cursor->at >= cursor->end || cursor->has_failed) {
        cursor->has_failed = true;
        return 0;
    }
    if (cursor->at < cursor->start_of_copy || cursor->at >= cursor->end_of_copy) {
        size_t bytes = cursor->end - cursor->at < sizeof cursor->copy ? cursor->end - cursor->at : sizeof cursor->copy;
        cursor->start_of_copy = cursor->at;
        cursor->end_of_copy = cursor->at + bytes;
        cursor->has_failed = !foreign_copy(cursor->at, cursor->copy, bytes);
    }
    return cursor->copy[cursor->at++ - cursor->start_of_copy];
}

static uint64_t fixed(struct cursor *cursor, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)byte_at(cursor) << 8 * i;
    return value;
}

static uint64_t unsigned_number(struct cursor *cursor)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = byte_at(cursor);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0)
            break;
    }
    return value;
}

static int64_t signed_number(struct cursor *cursor)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = byte_at(cursor);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) != 0)
            continue;
        if ((byte & 0x40) != 0 && shift + 7 < 64)
            value |= -(UINT64_C(1) << (shift + 7));
        break;
    }
    return (int64_t)value;
}

static void skip_text(struct cursor *cursor)
{
    while (byte_at(cursor) != 0)
        ;
}

struct header {
    uint8_t instruction_bytes, line_range, opcode_base;
    int8_t line_base;
    uint8_t arguments[256];
    uintptr_t files[MOST_FILES]; /* their names, by their numbers */
    size_t file_count;
    uintptr_t program;
};

/* False: it is none that we know. */
static bool read_header(struct cursor *cursor, struct header *header)
{
    uint64_t length = fixed(cursor, 4);
    if (length > cursor->end - cursor->at)
        return false;
    cursor->end = cursor->at + length;
    uint64_t version = fixed(cursor, 2), header_length = fixed(cursor, 4);
    header->program = cursor->at + header_length;
    header->instruction_bytes = byte_at(cursor);
    if (version == 4)
        byte_at(cursor); /* operations per instruction */
    byte_at(cursor);     /* whether lines are statements at first */
    header->line_base = (int8_t)byte_at(cursor);
    header->line_range = byte_at(cursor);
    header->opcode_base = byte_at(cursor);
    for (int i = 1; i < header->opcode_base; i++)
        header->arguments[i] = byte_at(cursor);
    while (byte_at(cursor) != 0) /* directories */
        skip_text(cursor);
    header->file_count = 1;
    for (uintptr_t name = cursor->at; byte_at(cursor) != 0; name = cursor->at) {
        skip_text(cursor);
        for (int i = 0; i < 3; i++)
            unsigned_number(cursor);
        if (header->file_count < MOST_FILES)
            header->files[header->file_count++] = name;
    }
    return !cursor->has_failed && version >= 2 && version <= 4 && header->line_range != 0 && header->opcode_base > FIXED_ADVANCE_PC &&
           header->program >= cursor->at && header->program <= cursor->end;
}

struct row {
    uint64_t address, file;
    int64_t line;
};

struct search {
    struct row row, best;
    uint64_t address;
    bool has_best, is_over;
    /* Rows since the last mark, or since the start of the program. */
    size_t rows;
    /* So far addresses have only increased, and none is above the one searched for. */
    bool is_ordered;
};

/* A row begins where the one before ends: the last one that begins at or below the address is its. */
static void put(struct search *search)
{
    if (search->row.address > search->address) {
        search->is_over = search->has_best;
        search->is_ordered = false;
        return;
    }
    search->is_ordered &= !search->has_best || search->row.address >= search->best.address;
    search->best = search->row;
    search->has_best = true;
    search->rows++;
}

/* ---- marks ---- */

/* Rows from one mark to the next. */
#define MARK_ROWS 256
#define MARKS 511 /* so that struct guile_marks fills four pages */

struct mark {
    struct row row;
    uintptr_t next; /* the instruction behind that row */
};

struct guile_marks {
    _Atomic(size_t) count;
    /* No row covers an address below this one. The start of a module has no row, yet it is looked up for every frame of the
     * module's top-level function. */
    _Atomic(uint64_t) first;
    struct mark marks[MARKS];
};

/* A thread that cannot take it leaves no marks. */
static bridge_lock marking;

static void begin_at_mark(const struct guile_marks *marks, struct cursor *cursor, struct search *search)
{
    size_t count = marks == NULL ? 0 : atomic_load_explicit(&marks->count, memory_order_acquire);
    search->is_over = marks != NULL && search->address < atomic_load_explicit(&marks->first, memory_order_relaxed);
    while (count > 0 && marks->marks[count - 1].row.address > search->address)
        count--;
    if (count == 0)
        return;
    const struct mark *mark = &marks->marks[count - 1];
    search->row = search->best = mark->row;
    search->has_best = true;
    cursor->at = mark->next;
}

/* The caller holds the lock. NULL: out of memory. */
static struct guile_marks *marks_of(struct guile_image *image)
{
    struct guile_marks *marks = atomic_load_explicit(&image->marks, memory_order_relaxed);
    if (marks != NULL)
        return marks;
    marks = memory_map(sizeof *marks);
    atomic_store_explicit(&image->marks, marks, memory_order_release);
    return marks;
}

/* All rows before a mark have addresses at or below the mark's, so a search that starts there skips none that it needs. Leaves no mark
 * at the end of a sequence, where the state is already reset for the next one. */
static void leave_mark(struct guile_image *image, const struct cursor *cursor, const struct search *search)
{
    bool is_within = search->row.address == search->best.address;
    if (!search->is_ordered || !is_within || cursor->has_failed || !lock_try(&marking))
        return;
    struct guile_marks *marks = marks_of(image);
    size_t count = marks == NULL ? MARKS : atomic_load_explicit(&marks->count, memory_order_relaxed);
    if (count < MARKS && (count == 0 || marks->marks[count - 1].next < cursor->at)) {
        marks->marks[count] = (struct mark){.row = search->row, .next = cursor->at};
        atomic_store_explicit(&marks->count, count + 1, memory_order_release);
    }
    lock_release(&marking);
}

/* Called when the whole program has no row at or below the address. */
static void note_first(struct guile_image *image, uint64_t without_rows)
{
    if (!lock_try(&marking))
        return;
    struct guile_marks *marks = marks_of(image);
    if (marks != NULL && atomic_load_explicit(&marks->first, memory_order_relaxed) <= without_rows)
        atomic_store_explicit(&marks->first, without_rows + 1, memory_order_relaxed);
    lock_release(&marking);
}

void guile_lines_after_fork_in_child(void)
{
    lock_release(&marking);
}

/* ---- instructions ---- */

static void step_extended(struct cursor *cursor, struct search *search)
{
    uint64_t length = unsigned_number(cursor);
    uintptr_t next = cursor->at + length;
    uint8_t operation = byte_at(cursor);
    if (operation == SET_ADDRESS)
        search->row.address = fixed(cursor, (int)(length - 1 < 8 ? length - 1 : 8));
    if (operation == END_SEQUENCE) {
        put(search);
        search->row = (struct row){.file = 1, .line = 1};
    }
    cursor->at = next;
    cursor->has_failed |= length == 0 || length > 64;
}

static void step_standard(struct cursor *cursor, const struct header *header, struct search *search, uint8_t operation)
{
    switch (operation) {
    case COPY:
        put(search);
        break;
    case ADVANCE_PC:
        search->row.address += unsigned_number(cursor) * header->instruction_bytes;
        break;
    case ADVANCE_LINE:
        search->row.line += signed_number(cursor);
        break;
    case SET_FILE:
        search->row.file = unsigned_number(cursor);
        break;
    case ADD_PC:
        search->row.address += (uint64_t)((255 - header->opcode_base) / header->line_range) * header->instruction_bytes;
        break;
    case FIXED_ADVANCE_PC:
        search->row.address += fixed(cursor, 2);
        break;
    default:
        for (int i = 0; i < header->arguments[operation]; i++)
            unsigned_number(cursor);
    }
}

static void step(struct cursor *cursor, const struct header *header, struct search *search)
{
    uint8_t operation = byte_at(cursor);
    if (operation == 0) {
        step_extended(cursor, search);
    } else if (operation < header->opcode_base) {
        step_standard(cursor, header, search, operation);
    } else {
        operation = (uint8_t)(operation - header->opcode_base);
        search->row.address += (uint64_t)(operation / header->line_range) * header->instruction_bytes;
        search->row.line += header->line_base + operation % header->line_range;
        put(search);
    }
}

static void copy_text(struct cursor *cursor, uintptr_t from, char *to, size_t room)
{
    size_t length = 0;
    cursor->at = from;
    for (uint8_t byte; length < room - 1 && (byte = byte_at(cursor)) != 0;)
        to[length++] = (char)byte;
    to[length] = 0;
}

static void run(struct guile_image *image, struct cursor *cursor, const struct header *header, struct search *search)
{
    cursor->at = header->program;
    begin_at_mark(atomic_load_explicit(&image->marks, memory_order_acquire), cursor, search);
    while (cursor->at < cursor->end && !cursor->has_failed && !search->is_over) {
        step(cursor, header, search);
        if (search->rows < MARK_ROWS || search->is_over)
            continue;
        search->rows = 0;
        leave_mark(image, cursor, search);
    }
    if (!search->has_best && !search->is_over && !cursor->has_failed)
        note_first(image, search->address);
}

uint32_t guile_lines_find(struct guile_image *image, uintptr_t ip, char *file, size_t room)
{
    struct cursor cursor = {.at = image->lines, .end = image->lines_end};
    struct header header = {0};
    file[0] = 0;
    if (image->lines == 0 || image->lines_end - image->lines > MOST_PROGRAM || !read_header(&cursor, &header))
        return 0;
    struct search search = {.row = {.file = 1, .line = 1}, .address = ip - image->base, .is_ordered = true};
    run(image, &cursor, &header, &search);
    if (!search.has_best || search.best.line <= 0 || search.best.line > INT32_MAX)
        return 0;
    if (search.best.file < header.file_count)
        copy_text(&cursor, header.files[search.best.file], file, room);
    return (uint32_t)search.best.line;
}
