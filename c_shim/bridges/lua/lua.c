/* Lua's blocks as a heap of the hook ABI, with their types and the functions that made them.
 *
 * launch.c has an interpreter call luaopen_allocsample, and embedded.c calls lua_join_embedded, which put a function of ours in
 * front of the state's allocator. What the allocator gets from malloc is not counted again there. Frames are asked of Lua's debug interface,
 * which neither allocates nor raises errors for what is asked here.
 *
 * Lua tells nobody of its collections, but it finalizes what they find dead: a userdata that nobody refers to is the
 * witness of one, and leaves another behind. */
#define _GNU_SOURCE
#include "allocsample.h"
#include "bridge.h"
#include "kit/countdown.h"
#include "lua.h"
#include "kit/names.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *(*allocator)(void *context, void *block, size_t old_size, size_t size);

/* Interpreters of a process that are joined at most. */
#define STATES 64
/* Coroutines that have resumed each other. */
#define COROUTINES 32
/* Types that Lua 5.2 and later pass in place of the size of a block that is new; others are parts of objects. */
enum { TYPE_UNKNOWN = 0, TYPE_STRING = 4, TYPE_LAST = 10, TYPE_PART = 16 };
enum { OK = 0, GC_COUNT = 3, STATISTIC_HEAP = 1 };
/* The index of the table of globals in Lua 5.1. */
#define GLOBALS_5_1 (-10002)

/* lua_Debug, whose fields have changed their places; those used of it, and room for the others. */
struct frame {
    int event;
    const char *name, *name_what, *what, *source;
    char rest[160];
    uint64_t room[16];
};
_Static_assert(offsetof(struct frame, rest) == 40, "where the layouts of lua_Debug begin to differ");

#define PART "part of a table, stack or buffer"
static const struct layout {
    size_t line, first_line; /* offsets in lua_Debug */
    size_t call;             /* offset in lua_Debug of the call that it is about; 0: not known */
    bool is_stack_readable;  /* also while it moves to another block */
    bool has_types;          /* of new blocks */
    const char *last_types[2]; /* the last two of them */
    const char *part;
} lua_5_1 = {40, 48, 0, true, false, {NULL}, PART},
  lua_5_2 = {40, 44, 0, true, true, {"prototype", "upvalue"}, PART},
  lua_5_3 = {40, 44, 0, true, true, {"prototype"}, "upvalue, or part of a table, stack or buffer"},
  lua_5_4 = {48, 52, 128, true, true, {"upvalue", "prototype"}, PART},
  lua_5_4_5 = {48, 52, 128, false, true, {"upvalue", "prototype"}, PART},
  lua_5_5 = {48, 52, 136, false, true, {"upvalue", "prototype"}, PART};
/* Offset in a call of the pointer to its caller, since 5.2. The last one is of no function. */
#define CALLER 16
#define LARGEST_STACK (1 << 24)

static struct {
    allocator (*get_allocator)(lua_State *, void **);
    void (*set_allocator)(lua_State *, allocator, void *);
    int (*get_stack)(lua_State *, int, struct frame *);
    int (*get_info)(lua_State *, const char *, struct frame *);
    const char *(*get_local)(lua_State *, const struct frame *, int);
    const char *(*get_upvalue)(lua_State *, int, int);
    lua_State *(*to_thread)(lua_State *, int);
    void *(*to_function)(lua_State *, int);
    int (*status)(lua_State *);
    int (*gc)(lua_State *, int, ...);
    void (*set_top)(lua_State *, int);
    void (*push_value)(lua_State *, int);
    void (*create_table)(lua_State *, int, int);
    void (*push_function)(lua_State *, int (*)(lua_State *), int);
    void (*set_field)(lua_State *, int, const char *);
    void (*get_field)(lua_State *, int, const char *);
    void (*get_global)(lua_State *, const char *); /* not in 5.1 */
    const void *(*to_pointer)(lua_State *, int);
    int (*set_metatable)(lua_State *, int);
    int (*get_metatable)(lua_State *, int);
    /* One of them. */
    void *(*new_userdata)(lua_State *, size_t);
    void *(*new_userdata_5_4)(lua_State *, size_t, int);
} lua;

/* An interpreter. It is used by one thread at a time. */
static struct state {
    _Atomic(bool) is_taken;
    allocator next;
    void *next_context;
    lua_State *main; /* NULL: it was closed */
    void *resume, *wrapped; /* coroutine.resume, and what coroutine.wrap makes */
    struct countdown countdown;
    allocsample_nursery nursery;
} states[STATES];

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static const struct layout *layout;
static struct names functions;
static _Atomic(uint64_t) collections;
/* The state whose block this thread's sample is, and the bytes of the block that it takes the place of. */
static _Thread_local struct state *sampled_state;
static _Thread_local size_t replaced_size;
/* Whether it is LuaJIT, which has the interface of Lua 5.1. */
static bool is_luajit;
/* Whether the interpreter has all functions that are needed. */
static bool has_functions;
/* Whether a call's caller can be found in one step. By level, each frame takes one step more than the one before. */
static bool can_step;

/* ---- frames ---- */

static uint32_t number_at(const struct frame *frame, size_t offset)
{
    int number;
    memcpy(&number, (const char *)frame + offset, sizeof number);
    return number > 0 ? (uint32_t)number : 0;
}

static bool is_of_lua(const struct frame *frame)
{
    return frame->what != NULL && (frame->what[0] == 'L' || frame->what[0] == 'm');
}

static uint32_t number_of(const struct frame *frame)
{
    char made_up[64];
    uint32_t first_line = number_at(frame, layout->first_line);
    /* "@file", "=name", or the code itself. */
    const char *source = frame->source[0] == '@' || frame->source[0] == '=' ? frame->source + 1 : "(string)";
    const char *name = frame->what[0] == 'm' ? "main chunk" : frame->name;
    if (name == NULL) {
        snprintf(made_up, sizeof made_up, "function at line %u", first_line);
        name = made_up;
    }
    return names_function(&functions, hooks, heap, name, source, first_line);
}

static uintptr_t caller_of(uintptr_t call)
{
    return *(const uintptr_t *)(call + CALLER);
}

static uintptr_t *call_of(struct frame *frame)
{
    return (uintptr_t *)((char *)frame + layout->call);
}

/* Where a call's function is on the stack. While the stack moves it is an offset into it, since 5.4.5. */
static uintptr_t function_of(uintptr_t call)
{
    return *(const uintptr_t *)call;
}

/* Whether the block that grows may be the thread's stack: no address is within it, counted from 0, as an offset is. Calls are
 * not on the stack. */
static bool may_be_moving(lua_State *thread)
{
    struct frame frame;
    return replaced_size != 0 && lua.get_stack(thread, 0, &frame) != 0 && function_of(*call_of(&frame)) < replaced_size;
}

/* Makes the frame at `level` of the one at `level` - 1; false if there is none. */
static bool next_frame(lua_State *thread, int level, struct frame *frame)
{
    if (!can_step || level == 0)
        return lua.get_stack(thread, level, frame) != 0;
    uintptr_t caller = caller_of(*call_of(frame));
    *call_of(frame) = caller;
    return caller != 0 && caller_of(caller) != 0;
}

/* Whether steps lead where levels do, and functions are where calls say. */
static bool steps_are_right(lua_State *thread)
{
    struct frame frame;
    uintptr_t calls[2];
    for (int level = 0; level < 2; level++) {
        if (layout->call == 0 || lua.get_stack(thread, level, &frame) == 0)
            return false;
        calls[level] = *call_of(&frame);
    }
    return caller_of(calls[0]) == calls[1] && function_of(calls[1]) < function_of(calls[0]) &&
           function_of(calls[0]) - function_of(calls[1]) < LARGEST_STACK;
}

static size_t walk_thread(lua_State *thread, allocsample_frame *frames, size_t capacity)
{
    size_t count = 0;
    struct frame frame;
    for (int level = 0; count < capacity && next_frame(thread, level, &frame); level++) {
        if (lua.get_info(thread, "nSl", &frame) == 0 || !is_of_lua(&frame))
            continue;
        frames[count++] =
            (allocsample_frame){.function = number_of(&frame), .line = number_at(&frame, layout->line)};
    }
    return count;
}

/* The coroutine that `thread` has resumed, or NULL. A thread that has is in a function of C, whose stack has room above
 * its top; one in a function of Lua is the one that runs, and is not touched. */
static lua_State *resumed_by(const struct state *state, lua_State *thread)
{
    struct frame frame;
    if (lua.get_stack(thread, 0, &frame) == 0 || lua.get_info(thread, "S", &frame) == 0 || frame.what == NULL ||
        frame.what[0] != 'C' || lua.get_info(thread, "f", &frame) == 0)
        return NULL;
    void *function = lua.to_function(thread, -1);
    bool is_pushed = false;
    if (function != NULL && function == state->wrapped)
        is_pushed = lua.get_upvalue(thread, -1, 1) != NULL;
    else if (function != NULL && function == state->resume)
        is_pushed = lua.get_local(thread, &frame, 1) != NULL;
    lua_State *resumed = is_pushed ? lua.to_thread(thread, -1) : NULL;
    lua.set_top(thread, is_pushed ? -3 : -2);
    return resumed != NULL && lua.status(resumed) == OK ? resumed : NULL;
}

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    lua_State *threads[COROUTINES];
    const struct state *state = sampled_state;
    if (state == NULL)
        return 0;
    size_t depth = 0, count = 0;
    for (lua_State *thread = state->main; thread != NULL && depth < COROUTINES; thread = resumed_by(state, thread)) {
        if (may_be_moving(thread))
            return 0;
        threads[depth++] = thread;
    }
    while (depth > 0)
        count += walk_thread(threads[--depth], frames + count, capacity - count);
    return count;
}

/* ---- blocks ---- */

/* The counters of the calling thread, looked up once: every block of Lua passes here. */
static ALWAYS_INLINE struct shim_counters *counters_of_thread(void)
{
    static _Thread_local struct shim_counters *known __attribute__((tls_model("initial-exec")));
    if (UNLIKELY(known == NULL))
        known = shim_services.counters();
    return known;
}

/* The state's own allocator, whose blocks malloc is not to count: they are this heap's. */
static ALWAYS_INLINE void *under(const struct state *state, void *block, size_t old_size, size_t size)
{
    struct shim_quiet before = shim_quiet_begin(counters_of_thread());
    void *result = state->next(state->next_context, block, old_size, size);
    shim_quiet_end(before);
    return result;
}

static allocsample_type type_of_new(size_t type)
{
    if (!layout->has_types)
        return TYPE_UNKNOWN;
    return type >= TYPE_STRING && type <= TYPE_LAST ? (allocsample_type)type : TYPE_PART;
}

static void tell(struct state *state, const void *block, size_t size, allocsample_type type, size_t old_size)
{
    countdown_give_back(&state->countdown, size);
    if (countdown_take(&state->countdown, size))
        return;
    bool is_readable = old_size == 0 || layout->is_stack_readable;
    sampled_state = is_readable || can_step ? state : NULL;
    replaced_size = is_readable ? 0 : old_size;
    countdown_tell(&state->countdown, hooks, heap, (uintptr_t)block, size, type);
    sampled_state = NULL;
}

COLD static void *new_sample(struct state *state, size_t type, size_t size)
{
    void *block = under(state, NULL, type, size);
    if (block == NULL)
        countdown_give_back(&state->countdown, size);
    else
        tell(state, block, size, type_of_new(type), 0);
    return block;
}

/* A block that grows and is a sample: by way of a copy, since it may be a stack, and the walker needs one. */
COLD static void *grown_sample(struct state *state, void *old, size_t old_size, size_t size)
{
    void *block = under(state, NULL, 0, size);
    if (block == NULL) {
        countdown_give_back(&state->countdown, size);
        return under(state, old, old_size, size);
    }
    tell(state, block, size, TYPE_PART, old_size);
    memcpy(block, old, old_size < size ? old_size : size);
    hooks->freed(heap, (uintptr_t)old);
    under(state, old, old_size, 0);
    return block;
}

static void *lua_block(void *context, void *block, size_t old_size, size_t size)
{
    struct state *state = context;
    if (size == 0) {
        if (shim_is_marked(shim_services.block_filter, block))
            hooks->freed(heap, (uintptr_t)block);
        /* Its last block holds the main thread, behind a pointer's worth of the embedder's or at its start. */
        if ((uintptr_t)state->main - (uintptr_t)block <= sizeof(void *))
            state->main = NULL;
        return under(state, block, old_size, 0);
    }
    bool is_at_limit = countdown_charge(&state->countdown, size);
    if (block == NULL)
        return UNLIKELY(is_at_limit) ? new_sample(state, old_size, size) : under(state, NULL, old_size, size);
    if (UNLIKELY(is_at_limit))
        return grown_sample(state, block, old_size, size);
    /* Told before, as another thread may get the old block at once. A failure, which Lua does not survive for long, makes
     * a sample look freed that is not. */
    if (shim_is_marked(shim_services.block_filter, block))
        hooks->freed(heap, (uintptr_t)block);
    return under(state, block, old_size, size);
}

/* ---- collections ---- */

static int on_witness_dead(lua_State *thread);

/* The witness of the next collection, with the metatable that is on the top of the stack, which it takes. */
static void leave_witness(lua_State *thread)
{
    if (lua.new_userdata_5_4 != NULL)
        lua.new_userdata_5_4(thread, 0, 0);
    else
        lua.new_userdata(thread, 0);
}

/* A finalizer: its argument is the witness. When it was found dead is now, about; how long that took nobody knows. */
static int on_witness_dead(lua_State *thread)
{
    uint64_t now = hooks->now_ns();
    uint64_t values[] = {STATISTIC_HEAP, (uint64_t)lua.gc(thread, GC_COUNT, 0) * 1024};
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = ALLOCSAMPLE_MAJOR,
        .id = atomic_fetch_add_explicit(&collections, 1, memory_order_relaxed) + 1,
        .begin_ns = now,
        .end_ns = now,
        .statistics = 1,
        .values = values,
    };
    hooks->gc(heap, &gc);
    leave_witness(thread);
    if (lua.get_metatable(thread, 1) != 0)
        lua.set_metatable(thread, -2);
    return 0;
}

/* Has LuaJIT call the finalizer, which is on the top of the stack, as it calls its own functions of C; false if it is not
 * known how to.
 *
 * All others it calls through the wrapper that a program may set (luaJIT_setmode). A wrapper in a library that Lua loaded is
 * gone when the state is closed, before finalizers of what is older than the library run. An object of a function of C has
 * the address of the instruction that calls it: for LuaJIT's own that is one, for all others the next one, which the wrapper
 * changes. Both live as long as the state. */
static bool call_unwrapped(lua_State *thread)
{
    /* Offsets in such an object, which has pointers of 32 bits or of 64. */
    static const struct {
        size_t code, instruction, instruction_size;
    } layouts[] = {{24, 16, 4}, {40, 32, 8}};
    char *ours = (char *)(uintptr_t)lua.to_pointer(thread, -1);
    lua.get_field(thread, GLOBALS_5_1, "collectgarbage");
    const char *luajits = lua.to_function(thread, -1) != NULL ? lua.to_pointer(thread, -1) : NULL;
    lua.set_top(thread, -2);
    int (*finalizer)(lua_State *) = on_witness_dead;
    for (size_t i = 0; luajits != NULL && i < sizeof layouts / sizeof layouts[0]; i++) {
        /* The first layout's fields are within an object of either. */
        if (memcmp(ours + layouts[i].code, &finalizer, sizeof finalizer) != 0)
            continue;
        uint64_t from = 0, to = 0;
        memcpy(&from, ours + layouts[i].instruction, layouts[i].instruction_size);
        memcpy(&to, luajits + layouts[i].instruction, layouts[i].instruction_size);
        if (from != to + sizeof(uint32_t))
            return false;
        memcpy(ours + layouts[i].instruction, &to, layouts[i].instruction_size);
        return true;
    }
    return false;
}

static void watch_collections(lua_State *thread)
{
    lua.push_function(thread, on_witness_dead, 0);
    if (is_luajit && !call_unwrapped(thread)) {
        lua.set_top(thread, -2);
        return;
    }
    leave_witness(thread);
    lua.create_table(thread, 0, 1);
    lua.push_value(thread, -3);
    lua.set_field(thread, -2, "__gc");
    lua.set_metatable(thread, -2);
    lua.set_top(thread, -3);
}

/* ---- start ---- */

static void *symbol(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Which release the interpreter is of, by what it has. */
static const struct layout *find_layout(void)
{
    static const char release[] = "$LuaVersion: Lua 5.4.";
    if (symbol("lua_newuserdatauv") == NULL)
        return symbol("lua_getglobal") == NULL ? &lua_5_1 : symbol("lua_rotate") == NULL ? &lua_5_2 : &lua_5_3;
    if (symbol("lua_numbertocstring") != NULL)
        return &lua_5_5;
    /* Since 5.4.5 the pointers into a stack are none while it moves. */
    const char *ident = symbol("lua_ident");
    bool is_early = ident != NULL && strncmp(ident, release, sizeof release - 1) == 0 && ident[sizeof release - 1] < '5' &&
                    ident[sizeof release] == ' ';
    return is_early ? &lua_5_4 : &lua_5_4_5;
}

bool lua_find_functions(void)
{
    static const struct symbol symbols[] = {
        {&lua.get_allocator, "lua_getallocf"}, {&lua.set_allocator, "lua_setallocf"},
        {&lua.get_stack, "lua_getstack"},      {&lua.get_info, "lua_getinfo"},
        {&lua.get_local, "lua_getlocal"},      {&lua.get_upvalue, "lua_getupvalue"},
        {&lua.to_thread, "lua_tothread"},      {&lua.to_function, "lua_tocfunction"},
        {&lua.status, "lua_status"},           {&lua.gc, "lua_gc"},
        {&lua.set_top, "lua_settop"},          {&lua.create_table, "lua_createtable"},
        {&lua.push_value, "lua_pushvalue"},
        {&lua.push_function, "lua_pushcclosure"}, {&lua.set_field, "lua_setfield"},
        {&lua.set_metatable, "lua_setmetatable"}, {&lua.get_metatable, "lua_getmetatable"},
        {&lua.get_field, "lua_getfield"},      {&lua.to_pointer, "lua_topointer"},
    };
    if (!symbols_find(symbols, sizeof symbols / sizeof symbols[0], symbol))
        return false;
    void *found = symbol("lua_newuserdatauv"), *older = symbol("lua_newuserdata");
    memcpy(&lua.new_userdata_5_4, &found, sizeof found);
    memcpy(&lua.new_userdata, &older, sizeof older);
    void *get_global = symbol("lua_getglobal");
    memcpy(&lua.get_global, &get_global, sizeof get_global);
    layout = find_layout();
    is_luajit = symbol("luaJIT_setmode") != NULL;
    return has_functions = found != NULL || older != NULL;
}

static void define_types(void)
{
    const char *const types[] = {"string", "table",  "function", "userdata", "thread", layout->last_types[0],
                                 layout->last_types[1]};
    for (allocsample_type type = TYPE_STRING; layout->has_types && type <= TYPE_LAST; type++) {
        if (types[type - TYPE_STRING] != NULL)
            hooks->define_type(heap, type, types[type - TYPE_STRING], "");
    }
    hooks->define_type(heap, TYPE_PART, layout->part, "");
    hooks->define_statistic(heap, STATISTIC_HEAP, "heap", "bytes");
}

static bool register_heap(void)
{
    uintptr_t start, end;
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !has_functions || !names_make(&functions))
        return false;
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_COLLECTED,
        .name = "lua",
        .flags = ALLOCSAMPLE_WHOLE_CODE,
        /* LuaJIT's debug interface does not find the frames of compiled code. */
        .walk = is_luajit ? NULL : walk,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL)
        return false;
    define_types();
    void *code;
    memcpy(&code, &lua.get_stack, sizeof code);
    if (symbols_code_of(code, &start, &end))
        hooks->interpreter_range(heap, start, end);
    return true;
}

/* Registers the heap when the first interpreter of the process joins. Another thread's interpreter is not joined meanwhile. */
static bool begin(void)
{
    enum { NOT_BEGUN, BEGINNING, BEGUN, FAILED };
    static _Atomic(int) progress;
    int expected = NOT_BEGUN;
    if (atomic_compare_exchange_strong_explicit(&progress, &expected, BEGINNING, memory_order_acquire, memory_order_acquire)) {
        expected = register_heap() ? BEGUN : FAILED;
        atomic_store_explicit(&progress, expected, memory_order_release);
    }
    return expected == BEGUN;
}

static struct state *new_state(void)
{
    for (size_t i = 0; i < STATES; i++) {
        if (!atomic_exchange_explicit(&states[i].is_taken, true, memory_order_relaxed))
            return &states[i];
    }
    return NULL;
}

/* The interpreter, joined if it was not yet; NULL if it cannot be. */
static struct state *join_interpreter(lua_State *thread)
{
    void *context;
    if (!begin())
        return NULL;
    if (lua.get_allocator(thread, &context) == lua_block)
        return context;
    struct state *state = new_state();
    if (state == NULL)
        return NULL;
    state->main = thread;
    countdown_begin(&state->countdown, hooks, heap, &state->nursery);
    state->next = lua.get_allocator(thread, &state->next_context);
    lua.set_allocator(thread, lua_block, state);
    watch_collections(thread);
    return state;
}

/* A function of Lua, for package.loadlib: luaopen_allocsample(coroutine.resume, coroutine.wrap(f)). */
EXPORT int luaopen_allocsample(lua_State *thread)
{
    lua_launched();
    struct state *state = join_interpreter(thread);
    if (state == NULL)
        return 0;
    state->resume = lua.to_function(thread, 1);
    state->wrapped = lua.to_function(thread, 2);
    can_step = steps_are_right(thread);
    return 0;
}

void lua_join_embedded(lua_State *thread)
{
    /* LuaJIT does not return the memory of a state that is closed with another allocator than its own. A program's first state
     * lives as long as the program; those of its threads may come and go. */
    static _Atomic(bool) has_one;
    bool is_one_of_many = atomic_exchange_explicit(&has_one, true, memory_order_relaxed);
    if (is_one_of_many && is_luajit)
        return;
    struct state *state = join_interpreter(thread);
    if (state == NULL || layout == &lua_5_1)
        return;
    lua.get_global(thread, "coroutine");
    lua.get_field(thread, -1, "resume");
    state->resume = lua.to_function(thread, -1);
    lua.set_top(thread, -3);
}

void lua_after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
}
