/* Python's frames, read from the interpreter's own chain of the calling thread.
 *
 * No reference is counted, nothing is allocated and the interpreter's lock is not needed: a thread's chain changes by the
 * hand of that thread only, which is here. Offsets are those of each release's headers (3.8 to 3.13, 64-bit, with the
 * lock); the interpreter's version decides which. A pointer that does not lead to a code object ends the walk. */
#define _GNU_SOURCE
#include "bridges.h"
#include "names.h"
#include "python.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* Offsets in PyThreadState, in the frame, in PyCodeObject and in str. */
struct layout {
    int minor;
    uint16_t frame_in_thread;
    int16_t frame_in_cframe; /* 3.11 and 3.12: the thread's pointer leads to a _PyCFrame; -1 elsewhere */
    uint16_t code, previous, instruction, entry, owner; /* entry 0: none such */
    uint16_t file_name, name, first_line, bytecode;     /* bytecode 0: the instruction is an index */
    uint16_t instruction_bytes;                         /* of an index */
    uint16_t ascii, compact;                            /* where the text of a str begins */
};

static const struct layout layouts[] = {
    {8, 24, -1, 32, 24, 104, 0, 0, 104, 112, 40, 0, 1, 48, 72},
    {9, 24, -1, 32, 24, 104, 0, 0, 104, 112, 40, 0, 1, 48, 72},
    {10, 24, -1, 32, 24, 96, 0, 0, 104, 112, 40, 0, 2, 48, 72},
    {11, 56, 8, 32, 48, 56, 68, 69, 112, 128, 72, 184, 0, 48, 72},
    {12, 56, 0, 0, 8, 56, 0, 70, 112, 128, 68, 192, 0, 40, 56},
    {13, 72, -1, 0, 8, 56, 0, 70, 112, 128, 68, 200, 0, 40, 56},
};

/* _framowner of 3.11 on: of a generator; of the C stack (3.12 on), which is no Python frame and marks an entry. */
enum { OWNED_BY_GENERATOR = 1, OWNED_BY_C_STACK = 3 };

/* Functions that were defined, by code object; one that is met again at the same address with other names is another. */
struct function {
    uintptr_t code, name, file_name;
    uint32_t first_line, number;
};
#define FUNCTIONS (1u << 15)
/* Numbers by content, so that a function whose code object was made anew (each import, each fork) keeps its number. */
struct number {
    uint64_t content;
    uint32_t number;
};
/* Lines of instructions, by function. */
struct line {
    uint64_t key;
    uint32_t line;
};
#define LINES (1u << 14)

static const struct layout *layout;
static struct python_symbols python;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct function *functions;
static struct number *numbers;
static struct line *lines;
static uint32_t numbers_used;
/* Held for one walk at a time. */
static _Atomic(bool) lock;

static uintptr_t word_at(uintptr_t address)
{
    uintptr_t word;
    memcpy(&word, (const void *)address, sizeof word);
    return word;
}

static uint32_t half_word_at(uintptr_t address)
{
    uint32_t word;
    memcpy(&word, (const void *)address, sizeof word);
    return word;
}

/* ---- text ---- */

static size_t put_utf8(char *text, uint32_t character)
{
    if (character < 0x80) {
        text[0] = (char)character;
        return 1;
    }
    size_t more = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
    static const unsigned char marks[] = {0, 0xc0, 0xe0, 0xf0};
    for (size_t i = more; i > 0; i--) {
        text[i] = (char)(0x80 | (character & 0x3f));
        character >>= 6;
    }
    text[0] = (char)(marks[more] | character);
    return more + 1;
}

/* A str as UTF-8, cut to what has room. Empty for one that is not in the compact form, which names always are. */
static void copy_text(uintptr_t string, char *text, size_t room)
{
    size_t used = 0;
    if (string != 0) {
        size_t length = word_at(string + 16);
        /* Bit field of the state: interned, kind, compact, ascii; 3.11 and before have two bits of interned too. */
        uint32_t state = half_word_at(string + 32);
        uint32_t kind = state >> 2 & 7;
        bool is_compact = state >> 5 & 1, is_ascii = state >> 6 & 1;
        uintptr_t at = string + (is_ascii ? layout->ascii : layout->compact);
        for (size_t i = 0; is_compact && i < length && used + 5 < room; i++, at += kind) {
            uint32_t character = 0;
            memcpy(&character, (const void *)at, kind <= 4 ? kind : 0);
            used += put_utf8(text + used, character);
        }
    }
    text[used] = 0;
}

/* ---- names ---- */

static uint32_t define(const struct function *function)
{
    char name[512], file[1024];
    copy_text(function->name, name, sizeof name);
    copy_text(function->file_name, file, sizeof file);
    uint64_t content = names_hash(names_hash(NAMES_SEED, name), file) + function->first_line;
    content += content == 0;
    for (uint32_t i = 0; i < 64; i++) {
        struct number *place = &numbers[(content + i) % FUNCTIONS];
        if (place->content == content)
            return place->number;
        if (place->content == 0) {
            uint32_t number = ++numbers_used;
            hooks->define_function(heap, number, name, file, function->first_line);
            *place = (struct number){content, number};
            return number;
        }
    }
    return 0;
}

static uint32_t number_of(uintptr_t code)
{
    struct function seen = {
        .code = code,
        .name = word_at(code + layout->name),
        .file_name = word_at(code + layout->file_name),
        .first_line = half_word_at(code + layout->first_line),
    };
    struct function *place = &functions[(code >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (FUNCTIONS - 1)];
    if (place->code != seen.code || place->name != seen.name || place->file_name != seen.file_name ||
        place->first_line != seen.first_line) {
        seen.number = define(&seen);
        *place = seen;
    }
    return place->number;
}

static uint32_t line_of(uintptr_t code, uint32_t number, int offset)
{
    uint64_t key = (uint64_t)number << 32 | (uint32_t)offset;
    struct line *place = &lines[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 40 & (LINES - 1)];
    if (place->key != key) {
        int line = offset < 0 ? 0 : python.line_of((void *)code, offset);
        *place = (struct line){key, line > 0 ? (uint32_t)line : 0};
    }
    return place->line;
}

/* False after some microseconds: whoever holds it was stopped, or is what a signal handler on this thread interrupted. */
static bool take_lock(void)
{
    for (int patience = 0; patience < 1000; patience++) {
        if (!atomic_exchange_explicit(&lock, true, memory_order_acquire))
            return true;
    }
    return false;
}

static void release_lock(void)
{
    atomic_store_explicit(&lock, false, memory_order_release);
}

void python_after_fork_in_child(void)
{
    release_lock();
}

static void describe(uintptr_t code, int offset, allocsample_frame *frame)
{
    frame->function = number_of(code);
    frame->line = line_of(code, frame->function, offset);
}

/* ---- the chain ---- */

static bool is_code(uintptr_t object)
{
    return object != 0 && object % 8 == 0 && word_at(object + 8) == (uintptr_t)python.code_type;
}

/* Its last reference is gone, and what it consists of is being freed: 3.11 clears a frame, and the code with it, before it
 * takes the frame from the chain. */
static bool is_dying(uintptr_t code)
{
    return word_at(code) == 0;
}

/* Bytes from the start of the function's code. Negative: it has not begun. */
static int offset_of(uintptr_t frame, uintptr_t code)
{
    if (layout->bytecode == 0)
        return (int)half_word_at(frame + layout->instruction) * layout->instruction_bytes;
    return (int)(word_at(frame + layout->instruction) - (code + layout->bytecode));
}

static uintptr_t newest_frame(void)
{
    uintptr_t thread = (uintptr_t)python.thread_state();
    uintptr_t frame = thread == 0 ? 0 : word_at(thread + layout->frame_in_thread);
    if (layout->frame_in_cframe >= 0 && frame != 0)
        frame = word_at(frame + (uintptr_t)layout->frame_in_cframe);
    return frame;
}

bool python_frames_are_importing(void)
{
    static const char importer[] = "<frozen importlib";
    for (uintptr_t frame = newest_frame(); frame != 0; frame = word_at(frame + layout->previous)) {
        uintptr_t code = word_at(frame + layout->code);
        char file[sizeof importer + 5];
        if (!is_code(code))
            continue;
        copy_text(word_at(code + layout->file_name), file, sizeof file);
        if (strncmp(file, importer, sizeof importer - 1) == 0)
            return true;
    }
    return false;
}

/* The loop was entered for the last frame. It may run none yet, or none any more. */
static size_t end_activation(allocsample_frame *frames, size_t count, size_t first)
{
    if (count > first)
        frames[count - 1].flags = ALLOCSAMPLE_ENTRY;
    else
        frames[count++] = (allocsample_frame){.flags = ALLOCSAMPLE_ENTRY | ALLOCSAMPLE_NO_FRAME};
    return count;
}

size_t python_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    size_t count = 0, first = 0; /* the first one of its activation of the loop */
    /* Without it frames are shown as functions without names. */
    bool has_tables = take_lock();
    for (uintptr_t frame = newest_frame(); frame != 0 && count < capacity; frame = word_at(frame + layout->previous)) {
        uint8_t owner = layout->owner == 0 ? 0 : *(const uint8_t *)(frame + layout->owner);
        if (layout->minor >= 12 && owner == OWNED_BY_C_STACK) {
            first = count = end_activation(frames, count, first);
            continue;
        }
        uintptr_t code = word_at(frame + layout->code);
        if (!is_code(code))
            break;
        int offset = offset_of(frame, code);
        bool is_entry = layout->minor <= 10 || (layout->entry != 0 && *(const uint8_t *)(frame + layout->entry) != 0);
        bool is_incomplete = layout->minor >= 11 && owner != OWNED_BY_GENERATOR && offset < 0;
        if (!is_incomplete && !is_dying(code)) {
            frames[count] = (allocsample_frame){0};
            if (has_tables)
                describe(code, offset, &frames[count]);
            count++;
        }
        if (is_entry)
            first = count = end_activation(frames, count, first);
    }
    if (has_tables)
        release_lock();
    return count;
}

/* Zeroed memory that is touched as it is needed. */
static void *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

bool python_frames_prepare(const struct python_symbols *symbols, const allocsample_hooks *table)
{
    if (symbols->version == NULL || symbols->thread_state == NULL || symbols->line_of == NULL ||
        symbols->code_type == NULL || symbols->eval_loop == NULL)
        return false;
    int major = 0, minor = 0;
    if (sscanf(symbols->version(), "%d.%d", &major, &minor) != 2 || major != 3)
        return false;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        if (layouts[i].minor == minor)
            layout = &layouts[i];
    }
    python = *symbols;
    hooks = table;
    functions = map(FUNCTIONS * sizeof *functions);
    numbers = map(FUNCTIONS * sizeof *numbers);
    lines = map(LINES * sizeof *lines);
    return layout != NULL && functions != NULL && numbers != NULL && lines != NULL;
}

void python_frames_belong_to(allocsample_heap *registered)
{
    heap = registered;
}
