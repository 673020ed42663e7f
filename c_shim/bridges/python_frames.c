/* Python's frames, read from the interpreter's own chain of the calling thread.
 *
 * No reference is counted, nothing is allocated and the interpreter's lock is not needed: a thread's chain changes by the
 * hand of that thread only, which is here. A pointer that does not lead to a code object ends the walk. */
#define _GNU_SOURCE
#include "bridges.h"
#include "names.h"
#include "python.h"
#include "python_layout.h"

#include <string.h>
#include <sys/mman.h>

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

static const struct python_layout *layout;
static struct python_symbols python;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct function *functions;
static struct number *numbers;
static struct line *lines;
static uint32_t numbers_used;
/* Held for one walk at a time. */
static _Atomic(bool) lock;

/* ---- names ---- */

static uint32_t define(const struct function *function)
{
    char name[512], file[1024];
    python_copy_text(layout, function->name, name, sizeof name);
    python_copy_text(layout, function->file_name, file, sizeof file);
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
        .name = python_word_at(code + layout->name),
        .file_name = python_word_at(code + layout->file_name),
        .first_line = python_half_word_at(code + layout->first_line),
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
    python_types_after_fork_in_child();
}

static void describe(uintptr_t code, int offset, allocsample_frame *frame)
{
    frame->function = number_of(code);
    frame->line = line_of(code, frame->function, offset);
}

/* ---- the chain ---- */

static bool is_code(uintptr_t object)
{
    return object != 0 && object % 8 == 0 && python_word_at(object + 8) == (uintptr_t)python.code_type;
}

/* Its last reference is gone, and what it consists of is being freed: 3.11 clears a frame, and the code with it, before it
 * takes the frame from the chain. */
static bool is_dying(uintptr_t code)
{
    return python_word_at(code) == 0;
}

/* Bytes from the start of the function's code. Negative: it has not begun. */
static int offset_of(uintptr_t frame, uintptr_t code)
{
    if (layout->bytecode == 0)
        return (int)python_half_word_at(frame + layout->instruction) * layout->instruction_bytes;
    return (int)(python_word_at(frame + layout->instruction) - (code + layout->bytecode));
}

static uintptr_t newest_frame(void)
{
    uintptr_t thread = (uintptr_t)python.thread_state();
    uintptr_t frame = thread == 0 ? 0 : python_word_at(thread + layout->frame_in_thread);
    if (layout->frame_in_cframe >= 0 && frame != 0)
        frame = python_word_at(frame + (uintptr_t)layout->frame_in_cframe);
    return frame;
}

bool python_frames_are_importing(void)
{
    static const char importer[] = "<frozen importlib";
    for (uintptr_t frame = newest_frame(); frame != 0; frame = python_word_at(frame + layout->previous)) {
        uintptr_t code = python_word_at(frame + layout->code);
        char file[sizeof importer + 5];
        if (!is_code(code))
            continue;
        python_copy_text(layout, python_word_at(code + layout->file_name), file, sizeof file);
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
    for (uintptr_t frame = newest_frame(); frame != 0 && count < capacity; frame = python_word_at(frame + layout->previous)) {
        uint8_t owner = layout->owner == 0 ? 0 : *(const uint8_t *)(frame + layout->owner);
        if (layout->minor >= 12 && owner == OWNED_BY_C_STACK) {
            first = count = end_activation(frames, count, first);
            continue;
        }
        uintptr_t code = python_word_at(frame + layout->code);
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
    layout = python_layout_of(symbols->version());
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
