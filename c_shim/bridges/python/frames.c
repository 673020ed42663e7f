/* Python's frames, read from the interpreter's own chain of the calling thread.
 *
 * No reference is counted, nothing is allocated and the interpreter's lock is not needed: a thread's chain changes by the
 * hand of that thread only, which is here. But the chain may be wrong: a coroutine library that switches stacks, or ends a
 * coroutine, allocates and frees while the chain still names frames that are gone. So a frame is read as foreign memory
 * (foreign.h). What the thread owns meanwhile, and is read at once, is
 *
 *   - its PyThreadState, which PyGILState_GetThisThreadState has just returned;
 *   - the memory in which its interpreter makes frames (3.11 on): the piece where it will put the next one, and those before;
 *   - its own stack, where the interpreter's loop has frames of its own (3.11 on).
 *
 * Frames of generators, and all frames up to 3.10, are objects, and are copied. What a code object says is copied when it is
 * met for the first time, and stays true until it ends, which deaths.c tells. Whether it is one is asked before. */
#define _GNU_SOURCE
#include "bridge.h"
#include "kit/lock.h"
#include "kit/memory.h"
#include "kit/names.h"
#include "python.h"
#include "deaths.h"
#include "layout.h"

#include <pthread.h>
#include <string.h>

/* _framowner of 3.11 on: of a generator; of the C stack (3.12 on) or the interpreter (3.14 on), which is no Python frame and
 * marks an entry. */
enum { OWNED_BY_GENERATOR = 1, OWNED_BY_C_STACK = 3 };
/* The first minor version whose frames have marks in the lowest two bits of their references. */
enum { TAGS_REFERENCES = 14 };

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
/* Numbers of functions by their code objects. */
static struct python_alive codes;
static struct foreign_lines *foreign_lines;
static struct number *numbers;
static struct line *lines;
static uint32_t numbers_used;
/* Held for one walk at a time. */
static bridge_lock lock;

/* ---- names ---- */

/* 0: there is no room. */
static uint32_t define(struct foreign_reader *reader, const uint8_t *code)
{
    char name[512], file[1024];
    uint32_t first_line = python_half_word_in(code, layout->first_line);
    python_copy_text(layout, reader, python_word_in(code, layout->name), name, sizeof name);
    python_copy_text(layout, reader, python_word_in(code, layout->file_name), file, sizeof file);
    uint64_t content = names_hash(names_hash(NAMES_SEED, name), file) + first_line;
    content += content == 0;
    for (uint32_t i = 0; i < 64; i++) {
        struct number *place = &numbers[(content + i) % FUNCTIONS];
        if (place->content == content)
            return place->number;
        if (place->content == 0) {
            uint32_t number = ++numbers_used;
            hooks->define_function(heap, number, name, file, first_line);
            *place = (struct number){content, number};
            return number;
        }
    }
    return 0;
}

static uint32_t find_line(uintptr_t code, int offset)
{
    int line = offset < 0 ? 0 : python.line_of((void *)code, offset);
    return line > 0 ? (uint32_t)line : 0;
}

static uint32_t line_of(uintptr_t code, uint32_t number, int offset)
{
    uint64_t key = (uint64_t)number << 32 | (uint32_t)offset;
    struct line *place = &lines[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 40 & (LINES - 1)];
    if (place->key != key)
        *place = (struct line){key, find_line(code, offset)};
    return place->line;
}

void python_frames_after_fork_in_child(void)
{
    lock_release(&lock);
    python_types_after_fork_in_child();
}

/* ---- the chain ---- */

/* _PyStackChunk: the one before, and its size. */
enum { CHUNK_PREVIOUS = 0, CHUNK_SIZE = 8, CHUNK_HEADER = 24 };
/* A chunk consists of pages, and is no larger than that. */
#define CHUNK_STEP UINT64_C(4096)
#define LARGEST_CHUNK (UINT64_C(1) << 30)

enum { OWN_STACK, OWN_CHUNK, OWN_THREAD };

struct walk {
    struct foreign_reader reader;
    struct foreign_chain chain;
    struct foreign_range previous_chunk;
    uintptr_t next; /* the frame that comes next; 0: none */
    uintptr_t end;  /* the frame that ends the chain; 0: none does */
    size_t patience;
};

struct python_frame {
    uintptr_t at, code;
    uintptr_t instruction, first_instruction; /* up to 3.10 bytes from the start of the code, and 0 */
    uint8_t owner;
    bool is_entry;
};

/* The chunk before the one at `chunk`, which this thread owns as well: it gives one back when its last frame has ended. */
static struct foreign_range chunk_before(struct foreign_reader *reader, uintptr_t chunk)
{
    uint8_t header[CHUNK_HEADER];
    uintptr_t previous = chunk == 0 ? 0 : foreign_word(reader, chunk + CHUNK_PREVIOUS);
    if (previous == 0 || previous % CHUNK_STEP != 0 || !foreign_read(reader, previous, header, sizeof header))
        return (struct foreign_range){0};
    size_t size = python_word_in(header, CHUNK_SIZE);
    if (size == 0 || size % CHUNK_STEP != 0 || size > LARGEST_CHUNK)
        return (struct foreign_range){0};
    return (struct foreign_range){previous, previous + size};
}

static void begin(struct walk *walk, struct foreign_lines *lines, uintptr_t thread)
{
    *walk = (struct walk){.patience = 4096};
    foreign_reader_begin(&walk->reader, lines);
    walk->reader.owned[OWN_THREAD] = (struct foreign_range){thread, thread + layout->thread_bytes};
    walk->next = python_word_at(thread + layout->frame_in_thread);
    walk->end = layout->base_frame == 0 ? 0 : python_word_at(thread + layout->base_frame);
    if (layout->frame_in_cframe >= 0 && walk->next != 0)
        walk->next = foreign_word(&walk->reader, walk->next + (uintptr_t)layout->frame_in_cframe);
    if (layout->chunk == 0)
        return;
    uintptr_t chunk = python_word_at(thread + layout->chunk), limit = python_word_at(thread + layout->limit);
    if (chunk == 0 || limit <= chunk || limit - chunk > LARGEST_CHUNK)
        return;
    walk->reader.owned[OWN_CHUNK] = (struct foreign_range){chunk, limit};
    walk->previous_chunk = chunk_before(&walk->reader, chunk);
}

/* The chain goes from newer to older chunks. */
static void find_chunk(struct walk *walk, uintptr_t frame)
{
    if (foreign_is_within(&walk->reader.owned[OWN_CHUNK], frame, layout->frame_bytes) ||
        !foreign_is_within(&walk->previous_chunk, frame, layout->frame_bytes))
        return;
    walk->reader.owned[OWN_CHUNK] = walk->previous_chunk;
    walk->previous_chunk = chunk_before(&walk->reader, walk->previous_chunk.start);
}

/* Code has a copy of its instructions for each thread that runs it (3.14 on without the interpreter's lock): a row of addresses
 * after their number, and each frame knows which copy is its own. 0: not known. */
static uintptr_t first_instruction(struct walk *walk, uintptr_t code, uint32_t copy)
{
    if (copy == 0 || layout->bytecode_copies == 0)
        return code + layout->bytecode;
    uintptr_t copies = foreign_word(&walk->reader, code + layout->bytecode_copies);
    bool is_one = copies != 0 && copy < foreign_word(&walk->reader, copies);
    return is_one ? foreign_word(&walk->reader, copies + sizeof(uintptr_t) + copy * sizeof(uintptr_t)) : 0;
}

/* Reads the frame that comes next; false at the end of the chain, and where it is broken. */
static bool next_frame(struct walk *walk, struct python_frame *frame)
{
    uint8_t bytes[PYTHON_FRAME_BYTES];
    uintptr_t at = walk->next;
    if (at == 0 || at == walk->end || at % sizeof(uintptr_t) != 0 || walk->patience-- == 0 || foreign_chain_repeats(&walk->chain, at))
        return false;
    find_chunk(walk, at);
    if (!foreign_read(&walk->reader, at, bytes, layout->frame_bytes))
        return false;
    walk->next = python_word_in(bytes, layout->previous);
    *frame = (struct python_frame){
        .at = at,
        .code = python_word_in(bytes, layout->code),
        .owner = layout->owner == 0 ? 0 : bytes[layout->owner],
        .is_entry = layout->minor <= 10 || (layout->entry != 0 && bytes[layout->entry] != 0),
    };
    if (layout->minor >= TAGS_REFERENCES)
        frame->code &= ~(uintptr_t)3;
    if (layout->bytecode == 0) {
        frame->instruction = (uintptr_t)python_half_word_in(bytes, layout->instruction) * layout->instruction_bytes;
    } else {
        uint32_t copy = layout->bytecode_index == 0 ? 0 : python_half_word_in(bytes, layout->bytecode_index);
        frame->instruction = python_word_in(bytes, layout->instruction);
        frame->first_instruction = first_instruction(walk, frame->code, copy);
    }
    return true;
}

/* Bytes from the start of the function's code. Negative: it has not begun. */
static int offset_of(const struct python_frame *frame)
{
    return (int)(frame->instruction - frame->first_instruction);
}

enum code { NO_CODE, DYING_CODE, CODE };

/* What is at `code`, and its copy. One whose last reference is gone is being freed: 3.11 clears a frame, and the code with it,
 * before it takes the frame from the chain. What is free has the address of something else where references are counted. */
static enum code copy_code(uintptr_t code, uint8_t *bytes)
{
    if (code == 0 || code % sizeof(uintptr_t) != 0 || !foreign_copy(code, bytes, layout->code_bytes) ||
        python_word_in(bytes, python_in_object(layout, PYTHON_TYPE)) != (uintptr_t)python.code_type)
        return NO_CODE;
    return python_may_be_alive(layout, bytes) ? CODE : DYING_CODE;
}

/* Tells the function that runs in a frame. Without the tables, only a function that is already known gets a name. */
static enum code describe(struct walk *walk, bool has_tables, const struct python_frame *frame, allocsample_frame *described)
{
    uint8_t bytes[PYTHON_CODE_BYTES];
    *described = (allocsample_frame){0};
    uint32_t number = python_alive_number(&codes, frame->code);
    if (number == PYTHON_UNKNOWN) {
        enum code code = copy_code(frame->code, bytes);
        if (code != CODE || !has_tables)
            return code;
        number = define(&walk->reader, bytes);
        python_alive_add(&codes, frame->code, number);
    }
    int offset = offset_of(frame);
    described->function = number;
    described->line = has_tables ? line_of(frame->code, number, offset) : find_line(frame->code, offset);
    return CODE;
}

static bool stands_trial(uintptr_t thread);

/* The state of the calling thread. Before 3.12 the interpreter tells only the first one that the thread had, and one of a
 * sub-interpreter is another: that is the one with the lock, if the loop that it was entered for last is on this thread's stack. */
static uintptr_t own_state(void)
{
    uintptr_t first = (uintptr_t)python.thread_state(), loop, start, end;
    uintptr_t running = python.running_state == NULL ? 0 : (uintptr_t)python.running_state();
    if (running == 0 || running == first || layout->frame_in_cframe < 0 ||
        !foreign_copy(running + layout->frame_in_thread, &loop, sizeof loop))
        return first;
    shim_services.own_stack(&start, &end);
    return loop >= start && loop < end ? running : first;
}

bool python_frames_are_importing(void)
{
    static const char importer[] = "<frozen importlib";
    struct walk walk;
    struct python_frame frame;
    uint8_t code[PYTHON_CODE_BYTES];
    uintptr_t thread = own_state();
    if (thread == 0 || !stands_trial(thread))
        return false;
    begin(&walk, NULL, thread);
    while (next_frame(&walk, &frame)) {
        char file[sizeof importer + 5];
        if (copy_code(frame.code, code) == NO_CODE)
            continue;
        python_copy_text(layout, &walk.reader, python_word_in(code, layout->file_name), file, sizeof file);
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

static size_t read_frames(struct walk *walk, bool has_tables, allocsample_frame *frames, size_t capacity)
{
    size_t count = 0, first = 0; /* the first one of its activation of the loop */
    struct python_frame frame;
    while (count < capacity && next_frame(walk, &frame)) {
        if (layout->minor >= 12 && frame.owner >= OWNED_BY_C_STACK) {
            first = count = end_activation(frames, count, first);
            continue;
        }
        enum code code = describe(walk, has_tables, &frame, &frames[count]);
        if (code == NO_CODE)
            break;
        bool is_incomplete = layout->minor >= 11 && frame.owner != OWNED_BY_GENERATOR && offset_of(&frame) < 0;
        count += !is_incomplete && code == CODE;
        if (frame.is_entry)
            first = count = end_activation(frames, count, first);
    }
    return count;
}

/* ---- what a self-description is worth ---- */

/* The number of an attempt, and what came of all. */
enum { ATTEMPTS = 8, TRUSTED = -1, REFUSED = -2 };
static _Atomic(int) trial = TRUSTED;

static bool is_str(struct walk *walk, uintptr_t object)
{
    return object != 0 &&
           foreign_word(&walk->reader, object + python_in_object(layout, PYTHON_TYPE)) == (uintptr_t)python.str_type;
}

/* Whether the thread is this one, its newest frames are where it says that they are, and those run code with a name. */
static bool is_as_described(struct walk *walk, uintptr_t thread)
{
    struct python_frame frame;
    uint8_t code[PYTHON_CODE_BYTES];
    const struct foreign_range *chunk = &walk->reader.owned[OWN_CHUNK];
    uintptr_t size = foreign_word(&walk->reader, chunk->start + CHUNK_SIZE);
    if (python_word_at(thread + layout->thread_id) != (uintptr_t)pthread_self() || chunk->start == chunk->end ||
        size != chunk->end - chunk->start)
        return false;
    while (next_frame(walk, &frame)) {
        if (frame.owner >= OWNED_BY_C_STACK)
            continue;
        return copy_code(frame.code, code) != NO_CODE && is_str(walk, python_word_in(code, layout->name)) &&
               is_str(walk, python_word_in(code, layout->file_name));
    }
    return false;
}

/* False: the layout is not that of this interpreter, or nothing has shown yet that it is. A thread that runs nothing shows
 * nothing. */
static bool stands_trial(uintptr_t thread)
{
    struct walk walk;
    int attempts = atomic_load_explicit(&trial, memory_order_relaxed);
    if (LIKELY(attempts == TRUSTED))
        return true;
    if (attempts == REFUSED)
        return false;
    begin(&walk, NULL, thread);
    if (walk.next == 0 || walk.next == walk.end)
        return false;
    bool is_right = is_as_described(&walk, thread);
    int verdict = is_right ? TRUSTED : attempts + 1 == ATTEMPTS ? REFUSED : attempts + 1;
    atomic_store_explicit(&trial, verdict, memory_order_relaxed);
    return is_right;
}

size_t python_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    struct walk walk;
    uintptr_t thread = own_state();
    if (thread == 0 || !stands_trial(thread))
        return 0;
    /* Without it functions that nobody has met yet have no names. Threads allocate side by side without the interpreter's lock, and
     * from 3.12 on in sub-interpreters that have locks of their own. */
    bool has_tables = lock_try_longer(&lock);
    if (has_tables)
        foreign_lines_begin(foreign_lines, thread);
    begin(&walk, has_tables ? foreign_lines : NULL, thread);
    size_t count = read_frames(&walk, has_tables, frames, capacity);
    if (has_tables) {
        foreign_lines_end(foreign_lines, thread);
        lock_release(&lock);
    }
    return count;
}

bool python_frames_prepare(const struct python_symbols *symbols, const allocsample_hooks *table)
{
    if (symbols->layout == NULL || symbols->thread_state == NULL || symbols->line_of == NULL || symbols->code_type == NULL ||
        symbols->str_type == NULL || symbols->eval_loop == NULL)
        return false;
    layout = symbols->layout;
    python = *symbols;
    hooks = table;
    if (layout->thread_id != 0)
        atomic_store_explicit(&trial, 0, memory_order_relaxed);
    numbers = memory_map(FUNCTIONS * sizeof *numbers);
    lines = memory_map(LINES * sizeof *lines);
    foreign_lines = memory_map(sizeof *foreign_lines);
    return python_alive_make(&codes, FUNCTIONS / 4) && numbers != NULL && lines != NULL && foreign_lines != NULL;
}

static void on_death_of_code(uintptr_t code)
{
    python_alive_remove(&codes, code);
}

void python_frames_begin(void)
{
    python_alive_clear(&codes);
    python_deaths_watch(PYTHON_CODE, layout, python.code_type, on_death_of_code);
}

void python_frames_belong_to(allocsample_heap *registered)
{
    heap = registered;
}
