/* Has the walker of Python's frames walk chains that are right, and then a great many that are wrong, for the CPython whose
 * version is the argument. */
#define _GNU_SOURCE
#include "../../c_shim/bridges/python/frames.c"
#include "../../c_shim/bridges/python/deaths.c"
#include "wrecked_memory.h"
#include "described_python.h"

enum { FRAMES = 200, CHUNK_PAGES = 4, ROUNDS = 30000 };

static uint64_t thread_state[128]; /* PyThreadState */
static uint64_t *const code_type = described_code_type;
static uint64_t stack_of_c[16]; /* where 3.11 and 3.12 keep the way to the frame */
static uint32_t defined;
static char last_name[64];

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

static void put_header(uintptr_t at, const void *type)
{
    if (layout->is_free_threaded)
        put(at + 8, UINT64_C(1) << 32); /* one reference of its own thread */
    else
        put(at, 1);
    put(at + python_in_object(layout, PYTHON_TYPE), (uintptr_t)type);
}

static void put_text(uintptr_t at, const char *text)
{
    uint64_t state = 1 | 1 << 3 | 1 << 4; /* one byte for a character, compact, ascii */
    memset((void *)at, 0, 64);
    put_header(at, described_str_type);
    put(at + python_in_object(layout, 16), strlen(text));
    put(at + python_in_object(layout, 32), state << (layout->is_free_threaded && layout->minor >= 14 ? 8 : 2));
    memcpy((void *)(at + layout->ascii), text, strlen(text) + 1);
}

static uintptr_t put_code(uintptr_t at, uintptr_t name)
{
    memset((void *)at, 0, 256);
    put_header(at, code_type);
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
        put(chunk() + CHUNK_SIZE, CHUNK_PAGES * PAGE);
    }
    put(thread + layout->thread_id, layout->thread_id == 0 ? 0 : (uintptr_t)pthread_self());
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
    ((destructor)code_type[python_in_object(layout, PYTHON_TYPE_DEALLOC) / 8])((void *)code);
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

/* It has the tables for as long as it likes: what was met before has its name and line all the same. */
static void walk_while_another_thread_walks(void)
{
    uintptr_t names = chunk() + 32 * PAGE, code = put_code(names + 2 * PAGE, names);
    allocsample_frame alone[FRAMES], beside[FRAMES];
    put_text(names, "shared");
    for (size_t i = 0; i < 50; i++)
        put_frame(chunk() + 64 + i * 128, code, i == 0 ? 0 : chunk() + 64 + (i - 1) * 128);
    own_chunk(true);
    set_newest(chunk() + 64 + 49 * 128);
    size_t count = python_frames_walk(NULL, alone, FRAMES);
    CHECK(count >= 50 && alone[0].function == defined && alone[0].line > 0);
    CHECK(lock_try(&lock));
    CHECK(python_frames_walk(NULL, beside, FRAMES) == count);
    lock_release(&lock);
    for (size_t i = 0; i < count; i++)
        CHECK(beside[i].function == alone[i].function && beside[i].line == alone[i].line && beside[i].flags == alone[i].flags);
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

/* A description that is right in itself, and of another interpreter: nothing is read by it for long. */
static void refuse_what_is_not_so(void)
{
    if (layout->thread_id == 0)
        return;
    atomic_store(&trial, 0);
    put((uintptr_t)thread_state + layout->thread_id, 1);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        CHECK(atomic_load(&trial) == attempt);
        set_newest(chunk() + 64);
        CHECK(walk_now() == 0);
    }
    CHECK(atomic_load(&trial) == REFUSED);
    own_chunk(true);
    CHECK(walk_now() == 0);
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    struct python_identity identity = describe_python(arguments[1]);
    struct python_symbols symbols = {.thread_state = get_thread, .line_of = get_line, .code_type = code_type,
                                     .str_type = described_str_type, .eval_loop = code_type,
                                     .layout = python_layout_of(&identity)};
    CHECK(symbols.layout != NULL);
    destructor end = end_nothing;
    uint64_t *slot = &code_type[python_in_object(symbols.layout, PYTHON_TYPE_DEALLOC) / 8];
    memcpy(slot, &end, sizeof end);
    static allocsample_hooks table;
    table.define_function = define_function;
    wreck_begin();
    CHECK(python_frames_prepare(&symbols, &table));
    python_frames_begin();
    walk_a_right_chain(true, "f", "g");
    CHECK(atomic_load(&trial) == TRUSTED);
    walk_a_right_chain(false, "h", "i");
    walk_while_another_thread_walks();
    walk_a_chain_that_is_gone();
    walk_wrecks();
    refuse_what_is_not_so();
    wreck_end();
    python_deaths_unwatch();
    CHECK(memcmp(slot, &end, sizeof end) == 0);
    puts("walked");
    return 0;
}
