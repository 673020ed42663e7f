/* PHP's frames, read from the interpreter's own chain of the calling thread.
 *
 * No function of PHP's gives a whole stack without allocating. The chain has had the same layout since PHP 7.1, but for three
 * offsets: where the interpreter's globals have its newest frame, and where a function has its file and its first line. They are
 * found at the first sample below a PHP function, by what public functions say of that frame: its file (by address), its function
 * (by address) and its line. Nothing else is known of a version, and without a match there are no frames.
 *
 * All of it is read as foreign memory (foreign.h), since malloc may be called at any time. */
#define _GNU_SOURCE
#include "kit/foreign.h"
#include "kit/memory.h"
#include "kit/names.h"
#include "kit/symbols.h"
#include "kit/thread_pointer.h"
#include "php.h"

#include <string.h>

/* zend_execute_data, a frame. */
enum { FRAME_INSTRUCTION = 0, FRAME_FUNCTION = 24, FRAME_CALLER = 48, FRAME_BYTES = 56 };
/* zend_function; op_array is its variant for functions in PHP. Functions in C have an odd type, and evaluated code has a type of
 * its own. */
enum { FUNCTION_TYPE = 0, FUNCTION_NAME = 8, FUNCTION_CLASS = 16, FUNCTION_BYTES = 256, TYPE_EVALUATED = 4 };
enum { CLASS_NAME = 8, STRING_LENGTH = 16, STRING_TEXT = 24 };
/* zend_op, an instruction. */
enum { OP_HANDLER = 0, OP_LINE = 24, OP_BYTES = 32 };
/* Behind the address of a function's file. */
enum { FIRST_LINE = 8, LAST_LINE = 12, FILE_AND_LINES = 16 };
/* Samples at which the layout is looked for. */
#define TRIES 1000
#define KNOWN_FUNCTIONS 4096
#define KNOWN_LINES 16384

static const struct php_symbols *php;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct names functions;
static struct foreign_lines *lines;
/* Held for one walk: a signal handler that allocates gets no frames. */
static bridge_lock lock;
static const char *php_thread;
static struct php_position position;
static uintptr_t executor_bytes, code_start, code_end;
/* 0: not known yet. */
static size_t newest_frame, file_in_function;
static unsigned tries;

/* What was read before, by address: PHP keeps its functions until a request ends. Those that it does not keep are closures, which
 * the names tell apart, and code that was included or evaluated once. */
static struct known {
    struct {
        uintptr_t address, name, class, file;
        uint32_t first_line, number;
        uint64_t request;
    } functions[KNOWN_FUNCTIONS];
    struct {
        uintptr_t instruction;
        uint32_t number, line;
        uint64_t request;
    } lines[KNOWN_LINES];
} *known;
static uint64_t request;

struct function {
    uintptr_t address;
    uint8_t bytes[FUNCTION_BYTES];
};

static uintptr_t word_in(const uint8_t *bytes, size_t offset)
{
    uintptr_t word;
    memcpy(&word, bytes + offset, sizeof word);
    return word;
}

static uint32_t half_word_in(const uint8_t *bytes, size_t offset)
{
    uint32_t word;
    memcpy(&word, bytes + offset, sizeof word);
    return word;
}

static bool is_of_php(const struct function *function)
{
    return function->bytes[FUNCTION_TYPE] != 0 && (function->bytes[FUNCTION_TYPE] & 1) == 0;
}

/* ---- the layout ---- */

static bool read_function(struct foreign_reader *reader, uintptr_t address, size_t bytes, struct function *function)
{
    function->address = address;
    return address != 0 && address % sizeof(uintptr_t) == 0 && foreign_read(reader, address, function->bytes, bytes);
}

/* What public functions say of the newest frame, and of the newest one in PHP. */
struct testimony {
    uintptr_t file;
    uint32_t line;
    const char *function; /* NULL: evaluated code */
};

static bool is_named(struct foreign_reader *reader, const struct function *function, const char *name)
{
    uintptr_t string = word_in(function->bytes, FUNCTION_NAME);
    char text[8] = {0};
    if (name == NULL)
        return function->bytes[FUNCTION_TYPE] == TYPE_EVALUATED;
    if (string != 0)
        return (uintptr_t)name == string + STRING_TEXT;
    return foreign_read(reader, (uintptr_t)name, text, sizeof "main") && strcmp(text, "main") == 0;
}

/* Offset of the file in the function, if the frame agrees with the testimony; 0 otherwise. */
static size_t file_in_frame(struct foreign_reader *reader, uintptr_t frame, const struct testimony *said)
{
    uint8_t bytes[FRAME_BYTES];
    uint32_t line;
    struct function function;
    for (int depth = 0; depth < 64; depth++) {
        if (frame == 0 || frame % sizeof(uintptr_t) != 0 || !foreign_read(reader, frame, bytes, sizeof bytes))
            return 0;
        bool is_function = read_function(reader, word_in(bytes, FRAME_FUNCTION), sizeof function.bytes, &function);
        if (depth == 0 && (!is_function || !is_named(reader, &function, said->function)))
            return 0;
        if (is_function && is_of_php(&function))
            break;
        frame = word_in(bytes, FRAME_CALLER);
    }
    if (!is_of_php(&function) || !foreign_read(reader, word_in(bytes, FRAME_INSTRUCTION) + OP_LINE, &line, sizeof line) ||
        line != said->line)
        return 0;
    for (size_t offset = FUNCTION_CLASS + 8; offset + FILE_AND_LINES <= sizeof function.bytes; offset += 8)
        if (word_in(function.bytes, offset) == said->file && half_word_in(function.bytes, offset + FIRST_LINE) <= line &&
            half_word_in(function.bytes, offset + LAST_LINE) >= line)
            return offset;
    return 0;
}

static void find_layout(struct foreign_reader *reader)
{
    struct testimony said = {(uintptr_t)php->executed_file(), php->executed_line(), php->active_function()};
    size_t found = 0, file = 0, matches = 0;
    if (said.file == 0)
        return;
    tries++;
    for (size_t offset = 8; offset + 8 <= executor_bytes; offset += 8) {
        size_t in_function = file_in_frame(reader, *(const uintptr_t *)(php->executor + offset), &said);
        if (in_function == 0)
            continue;
        found = offset;
        file = in_function;
        matches++;
    }
    if (matches != 1)
        return;
    newest_frame = found;
    file_in_function = file;
}

/* ---- frames ---- */

static size_t copy_text(struct foreign_reader *reader, uintptr_t string, char *to, size_t room)
{
    size_t length = string == 0 ? 0 : foreign_word(reader, string + STRING_LENGTH);
    if (length > room - 1)
        length = room - 1;
    if (length == 0 || !foreign_read(reader, string + STRING_TEXT, to, length))
        length = 0;
    to[length] = 0;
    return length;
}

/* "Class::method"; code outside of functions is PHP's "{main}". */
static uint32_t define(struct foreign_reader *reader, const struct function *function)
{
    char name[768], file[1024];
    uintptr_t class = word_in(function->bytes, FUNCTION_CLASS), own = word_in(function->bytes, FUNCTION_NAME);
    size_t length = 0;
    if (own != 0 && class != 0)
        length = copy_text(reader, foreign_word(reader, class + CLASS_NAME), name, 256);
    /* An anonymous class has its place behind a zero. */
    length = length == 0 ? 0 : strlen(name);
    if (length > 0) {
        memcpy(name + length, "::", 2);
        length += 2;
    }
    if (own == 0 || copy_text(reader, own, name + length, sizeof name - length) == 0)
        memcpy(name, "{main}", sizeof "{main}");
    copy_text(reader, word_in(function->bytes, file_in_function), file, sizeof file);
    return names_function(&functions, hooks, heap, name, file, half_word_in(function->bytes, file_in_function + FIRST_LINE));
}

static size_t place_of(uintptr_t address, size_t places)
{
    return (address >> 3) * UINT64_C(0x9e3779b97f4a7c15) >> 40 & (places - 1);
}

static uint32_t number_of(struct foreign_reader *reader, const struct function *function)
{
    uintptr_t name = word_in(function->bytes, FUNCTION_NAME), class = word_in(function->bytes, FUNCTION_CLASS);
    uintptr_t file = word_in(function->bytes, file_in_function);
    uint32_t first_line = half_word_in(function->bytes, file_in_function + FIRST_LINE);
    __auto_type place = &known->functions[place_of(function->address, KNOWN_FUNCTIONS)];
    if (place->request == request && place->address == function->address && place->name == name && place->class == class &&
        place->file == file && place->first_line == first_line)
        return place->number;
    uint32_t number = define(reader, function);
    *place = (__typeof__(*place)){function->address, name, class, file, first_line, number, request};
    return number;
}

static bool is_line_of(const struct function *function, uint32_t line)
{
    return line >= half_word_in(function->bytes, file_in_function + FIRST_LINE) &&
           line <= half_word_in(function->bytes, file_in_function + LAST_LINE);
}

/* The line of the instruction in the interpreter's register, if that is of this function, and 0 if not. */
static uint32_t line_in_register(struct foreign_reader *reader, const struct function *function, uintptr_t stored)
{
    uint8_t op[OP_BYTES];
    uintptr_t instruction = position.instruction;
    if (instruction == 0 || (instruction - stored) % OP_BYTES != 0 || !foreign_read(reader, instruction, op, sizeof op))
        return 0;
    uintptr_t handler = word_in(op, OP_HANDLER);
    uint32_t line = half_word_in(op, OP_LINE);
    return handler >= code_start && handler < code_end && is_line_of(function, line) ? line : 0;
}

static uint32_t line_in_frame(struct foreign_reader *reader, const struct function *function, uint32_t number, uintptr_t instruction)
{
    uint32_t line = 0;
    __auto_type place = &known->lines[place_of(instruction, KNOWN_LINES)];
    if (place->request == request && place->instruction == instruction && place->number == number)
        return place->line;
    if (instruction == 0 || !foreign_read(reader, instruction + OP_LINE, &line, sizeof line) || !is_line_of(function, line))
        line = 0;
    *place = (__typeof__(*place)){instruction, number, line, request};
    return line;
}

/* The interpreter stores the instruction in the frame only before those that may raise an error, so that the newest frame's is often
 * an earlier one. */
static uint32_t line_of(struct foreign_reader *reader, const struct function *function, uint32_t number, uintptr_t frame,
                        uintptr_t instruction)
{
    uint32_t line = frame == position.frame ? line_in_register(reader, function, instruction) : 0;
    return line != 0 ? line : line_in_frame(reader, function, number, instruction);
}

static size_t walk_chain(struct foreign_reader *reader, allocsample_frame *frames, size_t capacity)
{
    struct foreign_chain chain = {0};
    struct function function;
    uint8_t bytes[FRAME_BYTES];
    size_t count = 0;
    uintptr_t frame = *(const uintptr_t *)(php->executor + newest_frame);
    while (frame != 0 && count < capacity && !foreign_chain_repeats(&chain, frame) &&
           foreign_read(reader, frame, bytes, sizeof bytes)) {
        if (read_function(reader, word_in(bytes, FRAME_FUNCTION), file_in_function + FILE_AND_LINES, &function) &&
            is_of_php(&function)) {
            uint32_t number = number_of(reader, &function);
            uint32_t line = line_of(reader, &function, number, frame, word_in(bytes, FRAME_INSTRUCTION));
            if (number != 0)
                frames[count++] = (allocsample_frame){.function = number, .line = line};
        }
        frame = word_in(bytes, FRAME_CALLER);
    }
    return count;
}

size_t php_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    struct foreign_reader reader;
    size_t count = 0;
    if (thread_pointer() != php_thread || (newest_frame == 0 && tries == TRIES) || !lock_try(&lock))
        return 0;
    foreign_lines_begin(lines, (uintptr_t)php_thread);
    foreign_reader_begin(&reader, lines);
    if (newest_frame == 0)
        find_layout(&reader);
    if (newest_frame != 0)
        count = walk_chain(&reader, frames, capacity);
    foreign_lines_end(lines, (uintptr_t)php_thread);
    lock_release(&lock);
    return count;
}

/* ---- start ---- */

bool php_frames_prepare(const struct php_symbols *symbols, const allocsample_hooks *the_hooks)
{
    uintptr_t start, end;
    php = symbols;
    hooks = the_hooks;
    lines = memory_map(sizeof *lines);
    known = memory_map(sizeof *known);
    if (lines == NULL || known == NULL || !names_make(&functions) || !symbols_extent_of(php->executor, &start, &end) ||
        !symbols_code_of(php->execute, &code_start, &code_end))
        return false;
    executor_bytes = end - start;
    return true;
}

void php_frames_belong_to(allocsample_heap *the_heap)
{
    heap = the_heap;
}

void php_frames_begin(void)
{
    php_thread = thread_pointer();
    request++;
}

void php_frames_at(struct php_position of)
{
    position = of;
}

void php_frames_after_fork_in_child(void)
{
    lock_release(&lock);
    names_after_fork_in_child(&functions);
}
