/* Reads `_Py_DebugOffsets`, by which CPython describes its structures to debuggers from 3.13 on. It is the first part of
 * `_PyRuntime`: a cookie, the version, and numbers of 64 bits.
 *
 * The order of the numbers changes with the minor version, so that the numbers themselves have to say whether they are what they
 * are taken for. They do: those of PyObject, PyTypeObject and str are public and as old as Python 3, the sizes of str and of a code
 * object are in their types, and a number that was inserted anywhere moves all that follow. So a version that is not listed
 * is read in the orders that are, the newest first, and its frames are tried on live threads before they are trusted
 * (frames.c). */
#include "layout.h"

#include <stdio.h>

enum field {
    FREE_THREADED,
    THREAD_SIZE, THREAD_FRAME, THREAD_BASE_FRAME, THREAD_ID, THREAD_CHUNK,
    FRAME_SIZE, FRAME_PREVIOUS, FRAME_CODE, FRAME_INSTRUCTION, FRAME_OWNER, FRAME_COPY_INDEX,
    CODE_SIZE, CODE_FILE, CODE_NAME, CODE_FIRST_LINE, CODE_BYTECODE, CODE_COPIES,
    OBJECT_SIZE, OBJECT_TYPE, TYPE_NAME, TYPE_REPR, TYPE_FLAGS, DICT_KEYS,
    STR_SIZE, STR_STATE, STR_LENGTH, STR_ASCII_SIZE,
    FIELDS
};

/* Which number each one is; 0: none. The name is the qualified one. */
static const struct order {
    int minor;
    uint8_t at[FIELDS];
} orders[] = {
    {15, {2, 22, 26, 27, 30, 32, 39, 40, 41, 42, 44, 46, 47, 48, 50, 52, 56, 57, 58, 59, 61, 62, 63, 79, 89, 90, 91, 92}},
    {14, {2, 22, 26, 0, 27, 29, 31, 32, 33, 34, 36, 38, 39, 40, 42, 44, 48, 49, 50, 51, 53, 54, 55, 67, 77, 78, 79, 80}},
    {13, {2, 19, 23, 0, 24, 26, 28, 29, 30, 31, 33, 0, 34, 35, 37, 39, 43, 0, 44, 45, 47, 48, 49, 57, 67, 68, 69, 70}},
};
/* More than the last one of any order. */
enum { WORDS = 96 };

/* Sizes: PyObject without and with a lock of the interpreter; PyASCIIObject beyond that; more than any PyThreadState. */
enum { SMALL_OBJECT = 16, LARGE_OBJECT = 32, STR_HEADER = 24, LARGEST_THREAD = 1 << 14 };

/* A field of `bytes` bytes, at its natural place, in a structure of that size. */
static bool fits(uint64_t offset, size_t bytes, uint64_t size)
{
    return offset % bytes == 0 && size >= bytes && offset <= size - bytes;
}

/* The public structures have one form only. */
static bool has_known_objects(const uint64_t *numbers)
{
    uint64_t object = numbers[OBJECT_SIZE], type = object + sizeof(uint64_t);
    return object == (numbers[FREE_THREADED] != 0 ? LARGE_OBJECT : SMALL_OBJECT) && numbers[FREE_THREADED] <= 1 &&
           numbers[OBJECT_TYPE] == object - sizeof(uint64_t) && numbers[TYPE_NAME] == type && numbers[TYPE_REPR] == type + 64 &&
           numbers[TYPE_FLAGS] == type + 144 && numbers[STR_LENGTH] == object && numbers[STR_STATE] == object + 16 &&
           numbers[STR_ASCII_SIZE] == object + STR_HEADER && numbers[STR_SIZE] == numbers[STR_ASCII_SIZE] + 24;
}

/* The types of both say how large their objects are. */
static bool has_sizes_of_types(const struct python_identity *identity, const uint64_t *numbers)
{
    size_t basic_size = PYTHON_TYPE_BASIC_SIZE + (numbers[FREE_THREADED] != 0 ? PYTHON_LARGER_HEADER : 0);
    return python_word_at((uintptr_t)identity->code_type + basic_size) == numbers[CODE_BYTECODE] &&
           python_word_at((uintptr_t)identity->str_type + basic_size) == numbers[STR_SIZE];
}

static bool has_known_code(const uint64_t *numbers)
{
    uint64_t size = numbers[CODE_SIZE] < PYTHON_CODE_BYTES ? numbers[CODE_SIZE] : PYTHON_CODE_BYTES;
    return numbers[CODE_FILE] != numbers[CODE_NAME] && fits(numbers[CODE_FILE], 8, size) && fits(numbers[CODE_NAME], 8, size) &&
           fits(numbers[CODE_FIRST_LINE], 4, size) && numbers[CODE_BYTECODE] <= numbers[CODE_SIZE] &&
           (numbers[FREE_THREADED] == 0 || numbers[CODE_COPIES] == 0 || fits(numbers[CODE_COPIES], 8, size));
}

static bool has_known_frames(const uint64_t *numbers)
{
    uint64_t size = numbers[FRAME_SIZE];
    return size <= PYTHON_FRAME_BYTES && numbers[FRAME_PREVIOUS] != numbers[FRAME_CODE] &&
           numbers[FRAME_INSTRUCTION] != numbers[FRAME_PREVIOUS] && numbers[FRAME_INSTRUCTION] != numbers[FRAME_CODE] &&
           fits(numbers[FRAME_PREVIOUS], 8, size) && fits(numbers[FRAME_CODE], 8, size) &&
           fits(numbers[FRAME_INSTRUCTION], 8, size) && numbers[FRAME_OWNER] != 0 && fits(numbers[FRAME_OWNER], 1, size) &&
           fits(numbers[FRAME_COPY_INDEX], 4, size);
}

static bool has_known_threads(const uint64_t *numbers)
{
    uint64_t size = numbers[THREAD_SIZE];
    /* Three pointers: the piece of memory, where it is used up to, and its end. */
    return size <= LARGEST_THREAD && numbers[THREAD_FRAME] != 0 && fits(numbers[THREAD_FRAME], 8, size) &&
           numbers[THREAD_CHUNK] != 0 && fits(numbers[THREAD_CHUNK], 8, size) && fits(numbers[THREAD_CHUNK] + 16, 8, size) &&
           fits(numbers[THREAD_BASE_FRAME], 8, size) && numbers[THREAD_ID] != 0 && fits(numbers[THREAD_ID], 8, size);
}

static bool read_in(const struct order *order, const struct python_identity *identity, uint64_t *numbers)
{
    for (size_t field = 0; field < FIELDS; field++)
        numbers[field] = order->at[field] == 0 ? 0 : identity->self_description[order->at[field]];
    return has_known_objects(numbers) && has_known_code(numbers) && has_known_frames(numbers) && has_known_threads(numbers) &&
           has_sizes_of_types(identity, numbers);
}

/* The end of the last of these fields, in whole words. */
static uint16_t end_of(const uint64_t *numbers, const enum field *fields, size_t count)
{
    uint64_t last = 0;
    for (size_t i = 0; i < count; i++)
        last = numbers[fields[i]] > last ? numbers[fields[i]] : last;
    return (uint16_t)(last / sizeof(uint64_t) * sizeof(uint64_t) + sizeof(uint64_t));
}

static struct python_layout layout_by(int minor, const uint64_t *numbers)
{
    static const enum field of_frame[] = {FRAME_PREVIOUS, FRAME_CODE, FRAME_INSTRUCTION, FRAME_OWNER, FRAME_COPY_INDEX};
    static const enum field of_code[] = {CODE_FILE, CODE_NAME, CODE_FIRST_LINE};
    bool is_free_threaded = numbers[FREE_THREADED] != 0;
    return (struct python_layout){
        .minor = minor,
        .frame_in_thread = (uint16_t)numbers[THREAD_FRAME],
        .frame_in_cframe = -1,
        .code = (uint16_t)numbers[FRAME_CODE],
        .previous = (uint16_t)numbers[FRAME_PREVIOUS],
        .instruction = (uint16_t)numbers[FRAME_INSTRUCTION],
        .owner = (uint16_t)numbers[FRAME_OWNER],
        .file_name = (uint16_t)numbers[CODE_FILE],
        .name = (uint16_t)numbers[CODE_NAME],
        .first_line = (uint16_t)numbers[CODE_FIRST_LINE],
        .bytecode = (uint16_t)numbers[CODE_BYTECODE],
        .ascii = (uint16_t)numbers[STR_ASCII_SIZE],
        .compact = (uint16_t)(numbers[STR_SIZE] - sizeof(uint64_t)),
        .with_two_words = PYTHON_HAS_DICT | PYTHON_HAS_WEAKREFS,
        .thread_bytes = (uint16_t)numbers[THREAD_SIZE],
        .chunk = (uint16_t)numbers[THREAD_CHUNK],
        .limit = (uint16_t)(numbers[THREAD_CHUNK] + 16),
        .frame_bytes = end_of(numbers, of_frame, sizeof of_frame / sizeof of_frame[0]),
        .code_bytes = end_of(numbers, of_code, sizeof of_code / sizeof of_code[0]),
        .base_frame = (uint16_t)numbers[THREAD_BASE_FRAME],
        .thread_id = (uint16_t)numbers[THREAD_ID],
        .bytecode_index = is_free_threaded && numbers[CODE_COPIES] != 0 ? (uint16_t)numbers[FRAME_COPY_INDEX] : 0,
        .bytecode_copies = is_free_threaded ? (uint16_t)numbers[CODE_COPIES] : 0,
        .dict_keys = is_free_threaded ? (uint16_t)numbers[DICT_KEYS] : 0,
        .is_free_threaded = is_free_threaded,
    };
}

bool python_offsets_read(const struct python_identity *identity, int minor, struct python_layout *layout)
{
    static const char cookie[8] = {'x', 'd', 'e', 'b', 'u', 'g', 'p', 'y'};
    uint64_t numbers[FIELDS];
    if (identity->self_description == NULL || identity->words < WORDS || identity->code_type == NULL || identity->str_type == NULL ||
        memcmp(identity->self_description, cookie, sizeof cookie) != 0)
        return false;
    /* PY_VERSION_HEX */
    uint64_t version = identity->self_description[1];
    if (version >> 24 != 3 || (int)(version >> 16 & 0xff) != minor)
        return false;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        bool is_listed = minor <= orders[0].minor;
        if ((!is_listed || orders[i].minor == minor) && read_in(&orders[i], identity, numbers)) {
            *layout = layout_by(minor, numbers);
            return true;
        }
    }
    return false;
}
