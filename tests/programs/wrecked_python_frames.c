/* Has the walker of Python's frames walk chains that are right, and then a great many that are wrong, for the CPython whose
 * version is the argument. */
#define _GNU_SOURCE
#include "../../c_shim/bridges/python/frames.c"
#include "../../c_shim/bridges/python/layout.c"
#include "../../c_shim/bridges/python/deaths.c"
#include "wrecked_memory.h"

enum { FRAMES = 200, CHUNK_PAGES = 4, ROUNDS = 30000 };

static uint64_t thread_state[64]; /* PyThreadState */
static uint64_t code_type[64];
static uint64_t stack_of_c[16]; /* where 3.11 and 3.12 keep the way to the frame */
static const char *version;
static uint32_t defined;
static char last_name[64];

static const char *get_version(void)
{
    return version;
}

static void *get_thread(void)
{
    return thread_state;
}

static int get_line(void *code, int offset)
{
    (void)code;
    return offset + 1;
}

static int32_t define_function(allocsample_heap *of, allocsample_function number, const char *name,
                                         const char *file, uint32_t line)
{
    (void)of, (void)file, (void)line;
    defined = number;
    snprintf(last_name, sizeof last_name, "%s", name);
    return ALLOCSAMPLE_OK;
}

void python_types_after_fork_in_child(void) {}

static void put(uintptr_t at, uintptr_t word)
{
    memcpy((void *)at, &word, sizeof word);
}

static void put_text(uintptr_t at, const char *text)
{
    memset((void *)at, 0, 48);
    put(at + 16, strlen(text));
    put(at + 32, 1 << 2 | 1 << 5 | 1 << 6); /* one byte for a character, compact, ascii */
    memcpy((void *)(at + layout->ascii), text, strlen(text) + 1);
}

static uintptr_t put_code(uintptr_t at, uintptr_t name)
{
    memset((void *)at, 0, 256);
    put(at, 1);
    put(at + PYTHON_TYPE, (uintptr_t)code_type);
    put(at + layout->name, name);
    put(at + layout->file_name, name);
    return at;
}

static void put_frame(uintptr_t at, uintptr_t code, uintptr_t previous)
{
    memset((void *)at, 0, 112);
    put(at + layout->code, code);
    put(at + layout->previous, previous);
    if (layout->bytecode != 0)
        put(at + layout->instruction, code + layout->bytecode + 2);
}

static void set_newest(uintptr_t frame)
{
    uintptr_t thread = (uintptr_t)thread_state;
    if (layout->frame_in_cframe < 0) {
        put(thread + layout->frame_in_thread, frame);
    } else {
        put(thread + layout->frame_in_thread, (uintptr_t)stack_of_c);
        put((uintptr_t)stack_of_c + (uintptr_t)layout->frame_in_cframe, frame);
    }
}

static size_t walk_now(void)
{
    allocsample_frame frames[FRAMES];
    size_t count = python_frames_walk(NULL, frames, FRAMES);
    CHECK(count <= FRAMES);
    return count;
}

static uintptr_t chunk(void)
{
    return (uintptr_t)wreck;
}

static void own_chunk(bool is_there)
{
    uintptr_t thread = (uintptr_t)thread_state;
    if (layout->chunk != 0) {
        put(thread + layout->chunk, is_there ? chunk() : 0);
        put(thread + layout->limit, is_there ? chunk() + CHUNK_PAGES * PAGE : 0);
    }
}

/* A chain in the thread's own chunk, or elsewhere. */
static void walk_a_right_chain(bool is_in_chunk, const char *name, const char *other_name)
{
    uintptr_t base = is_in_chunk ? chunk() : chunk() + 2 * CHUNK_PAGES * PAGE;
    uintptr_t names = chunk() + 32 * PAGE, code = put_code(names + 2 * PAGE, names);
    put_text(names, name);
    put(chunk() + CHUNK_PREVIOUS, 0);
    for (size_t i = 0; i < 50; i++)
        put_frame(base + 64 + i * 128, code, i == 0 ? 0 : base + 64 + (i - 1) * 128);
    own_chunk(true);
    set_newest(base + 64 + 49 * 128);
    CHECK(walk_now() >= 50);
    CHECK(strcmp(last_name, name) == 0);

    /* Another function comes to lie where one was. */
    uint32_t before = defined;
    put_text(names, other_name);
    ((destructor)((uintptr_t *)code_type)[PYTHON_TYPE_DEALLOC / 8])((void *)code);
    CHECK(walk_now() >= 50);
    CHECK(defined == before + 1 && strcmp(last_name, other_name) == 0);
    on_death_of_code(code);
    put_text(names, "");

    /* It leads back into itself. */
    put(base + 64 + layout->previous, base + 64 + 20 * 128);
    size_t count = walk_now();
    CHECK(count >= 50 && count < FRAMES);
    on_death_of_code(code);
}

/* What a coroutine library leaves for a moment: the frame is gone, and so is the chunk. */
static void walk_a_chain_that_is_gone(void)
{
    own_chunk(false);
    uintptr_t gone = chunk() + (PAGES + VOLATILE_PAGES + 1) * PAGE;
    set_newest(gone + 64);
    CHECK(walk_now() == 0);
    set_newest(gone - PAGE + 64);
    CHECK(walk_now() == 0);
}

static void walk_wrecks(void)
{
    uintptr_t codes_at = chunk() + 40 * PAGE;
    uintptr_t known[] = {(uintptr_t)code_type, codes_at, codes_at + 512, codes_at + 1024, chunk() + 64, 0};
    for (int round = 0; round < ROUNDS; round++) {
        if (round % 100 == 0)
            wreck_again(known, sizeof known / sizeof known[0]);
        for (size_t i = 0; i < 3; i++)
            put_code(codes_at + i * 512, draw_place());
        /* Frames whose code is one, so that the chain goes on; to anywhere. */
        for (size_t i = 0; i < 100; i++)
            put_frame(draw() % (40 * PAGE) / 8 * 8 + chunk(), codes_at + draw() % 3 * 512, draw_place());
        put(chunk() + CHUNK_PREVIOUS, draw() % 2 == 0 ? draw_place() : 0);
        own_chunk(draw() % 4 != 0);
        set_newest(draw() % 8 == 0 ? draw() : draw_place());
        walk_now();
        (void)python_frames_are_importing();
        for (size_t i = 0; i < 3; i++)
            on_death_of_code(codes_at + i * 512);
    }
}

static void end_nothing(void *object)
{
    (void)object;
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    version = arguments[1];
    struct python_symbols symbols = {.version = get_version, .thread_state = get_thread, .line_of = get_line,
                                     .code_type = code_type, .eval_loop = code_type};
    destructor end = end_nothing;
    memcpy((char *)code_type + PYTHON_TYPE_DEALLOC, &end, sizeof end);
    static allocsample_hooks table;
    table.define_function = define_function;
    wreck_begin();
    CHECK(python_frames_prepare(&symbols, &table));
    python_frames_begin();
    walk_a_right_chain(true, "f", "g");
    walk_a_right_chain(false, "h", "i");
    walk_a_chain_that_is_gone();
    walk_wrecks();
    wreck_end();
    python_deaths_unwatch();
    CHECK(memcmp((char *)code_type + PYTHON_TYPE_DEALLOC, &end, sizeof end) == 0);
    puts("walked");
    return 0;
}
