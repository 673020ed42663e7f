/* A line is the one that a reading of the whole program of rows finds, whichever marks earlier searches have left, and a search reads
 * little once there are marks. Random programs, of one sequence or several, in order or not. */
#define _GNU_SOURCE
#include "../../c_shim/bridges/guile/lines.c"
#include "bridge_parts.h"
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_ROWS = (MARKS + 20) * MARK_ROWS, ROOM = 16 * MOST_ROWS, LINE_BASE = -5, LINE_RANGE = 14, OPCODE_BASE = 10 };

static uint8_t image_bytes[ROOM];
static size_t used, copies;
static struct row rows[MOST_ROWS];
static size_t row_count;

bool foreign_copy(uintptr_t from, void *to, size_t bytes)
{
    copies++;
    if (from < (uintptr_t)image_bytes || bytes > ROOM || from > (uintptr_t)image_bytes + ROOM - bytes)
        return false;
    memcpy(to, (const void *)from, bytes);
    return true;
}

static void byte(unsigned value)
{
    CHECK(used < ROOM);
    image_bytes[used++] = (uint8_t)value;
}

static void number(uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        byte((unsigned)(value & 0x7f) | 0x80);
    byte((unsigned)value);
}

static void little_endian(size_t at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        image_bytes[at + (size_t)i] = (uint8_t)(value >> 8 * i);
}

static void begin_program(void)
{
    static const uint8_t arguments[OPCODE_BASE - 1] = {0, 1, 1, 1, 1, 0, 0, 0, 1};
    used = 10; /* lengths and version */
    byte(1);
    byte(1);
    byte((uint8_t)LINE_BASE);
    byte(LINE_RANGE);
    byte(OPCODE_BASE);
    for (size_t i = 0; i < sizeof arguments; i++)
        byte(arguments[i]);
    byte(0); /* no directories */
    for (unsigned file = 1; file <= 3; file++) {
        byte('a' + file);
        for (int i = 0; i < 4; i++)
            byte(0);
    }
    byte(0);
    little_endian(4, 2, 2);
    little_endian(6, used - 10, 4);
    row_count = 0;
}

static void put_row(const struct row *row)
{
    CHECK(row_count < MOST_ROWS);
    rows[row_count++] = *row;
}

static void end_sequence(struct row *row)
{
    put_row(row);
    byte(0);
    number(1);
    byte(END_SEQUENCE);
    *row = (struct row){.file = 1, .line = 1};
}

static void set_address(struct row *row, uint64_t address)
{
    byte(0);
    number(9);
    byte(SET_ADDRESS);
    used += 8;
    CHECK(used < ROOM);
    little_endian(used - 8, address, 8);
    row->address = address;
}

static void random_row(struct row *row)
{
    if (below(8) == 0) {
        uint64_t more = below(300);
        byte(ADVANCE_PC);
        number(more);
        row->address += more;
    }
    if (below(16) == 0) {
        row->file = 1 + below(3);
        byte(SET_FILE);
        number(row->file);
    }
    if (below(8) == 0) {
        uint64_t more = below(60);
        byte(ADVANCE_LINE);
        number(more); /* below 64, so that its sign is right */
        row->line += (int64_t)more;
    }
    unsigned special = (unsigned)below(100);
    byte(OPCODE_BASE + special);
    row->address += special / LINE_RANGE;
    row->line += LINE_BASE + (int64_t)(special % LINE_RANGE);
    put_row(row);
}

enum order { ONE_SEQUENCE, SEQUENCES_IN_ORDER, ANY_ORDER };

static void make_program(size_t wanted, enum order order)
{
    struct row row = {.file = 1, .line = 1};
    begin_program();
    if (order != ONE_SEQUENCE)
        set_address(&row, 200 + below(20000));
    while (row_count + 2 < wanted) {
        uint64_t before = row.address;
        /* At a mark, too. */
        if (order == SEQUENCES_IN_ORDER && (row_count % MARK_ROWS == MARK_ROWS - 1 || below(700) == 0)) {
            end_sequence(&row);
            set_address(&row, before + below(100));
        }
        if (order == ANY_ORDER && below(700) == 0) {
            end_sequence(&row);
            set_address(&row, below(20000));
        }
        random_row(&row);
    }
    end_sequence(&row);
    little_endian(0, used - 4, 4);
}

/* The same by a list of the rows. */
static struct row expected(uint64_t address)
{
    struct row best = {0};
    bool has_best = false;
    for (size_t i = 0; i < row_count; i++) {
        if (rows[i].address <= address) {
            best = rows[i];
            has_best = true;
        } else if (has_best) {
            break;
        }
    }
    if (best.line <= 0)
        best = (struct row){0};
    return best;
}

static struct guile_image image_of_program(void)
{
    return (struct guile_image){.base = 0, .lines = (uintptr_t)image_bytes, .lines_end = (uintptr_t)image_bytes + used};
}

static void check_line(struct guile_image *image, uint64_t address)
{
    char file[16];
    struct row row = expected(address);
    char name[2] = {row.line == 0 ? 0 : (char)('a' + row.file), 0};
    CHECK(guile_lines_find(image, address, file, sizeof file) == (uint32_t)row.line);
    CHECK(strcmp(file, name) == 0);
}

static void forget(struct guile_image *image)
{
    if (image->marks != NULL)
        munmap(image->marks, sizeof *image->marks);
    image->marks = NULL;
}

static void lines_are_those_of_a_whole_reading(void)
{
    for (int round = 0; round < 150; round++) {
        make_program(3 + below(9000), (enum order)(round % 3));
        struct guile_image image = image_of_program();
        uint64_t end = 0;
        for (size_t i = 0; i < row_count; i++)
            end = rows[i].address > end ? rows[i].address : end;
        for (int i = 0; i < 60; i++)
            check_line(&image, below(end + 500));
        for (size_t i = MARK_ROWS - 1; i < row_count; i += MARK_ROWS)
            check_line(&image, rows[i].address);
        if (round % 3 == ONE_SEQUENCE && row_count > MARK_ROWS) {
            check_line(&image, end);
            CHECK(image.marks->count == (row_count - 1) / MARK_ROWS);
        }
        forget(&image);
    }
}

static void a_search_reads_little_once_there_are_marks(void)
{
    make_program(MOST_ROWS, ONE_SEQUENCE);
    struct guile_image image = image_of_program();
    check_line(&image, rows[row_count - 1].address);
    CHECK(image.marks->count == MARKS);
    for (int i = 0; i < 200; i++) {
        copies = 0;
        check_line(&image, rows[below(MARKS * MARK_ROWS)].address);
        CHECK(copies < 12);
    }
    check_line(&image, rows[row_count - 1].address);
    forget(&image);
}

/* Code before the first row is asked for again and again. */
static void a_search_in_front_of_all_rows_reads_the_program_once(void)
{
    make_program(20 * MARK_ROWS, SEQUENCES_IN_ORDER);
    uint64_t first = rows[0].address;
    struct guile_image image = image_of_program();
    for (int i = 0; i < 3; i++) {
        copies = 0;
        check_line(&image, first - 100);
        CHECK(i == 0 || copies < 3);
        check_line(&image, first - 100 + (uint64_t)i);
        check_line(&image, first);
        check_line(&image, rows[row_count - 2].address);
    }
    forget(&image);
}

int main(void)
{
    lines_are_those_of_a_whole_reading();
    a_search_reads_little_once_there_are_marks();
    a_search_in_front_of_all_rows_reads_the_program_once();
    puts("lines");
    return 0;
}
