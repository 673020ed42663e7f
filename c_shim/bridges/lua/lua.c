/* Lua's blocks as a heap of the hook ABI, with their types and the functions that made them.
 *
 * An interpreter is joined by a function of ours in front of its allocator. launch.c has an interpreter call luaopen_allocsample, and
 * embedded.c calls lua_join_embedded; after an attach watch.c reports calls of the interpreter's functions. What the allocator gets
 * from malloc is not counted again there.
 *
 * After a detach the first call of ours, on the thread that uses the interpreter, gives the allocator back. */
#define _GNU_SOURCE
#include "lua.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <string.h>

/* Interpreters of a process that are joined at most. */
#define STATES 64
/* Types that Lua 5.2 and later pass in place of the size of a block that is new; others are parts of objects. */
enum { TYPE_UNKNOWN = 0, TYPE_STRING = 4, TYPE_LAST = 10, TYPE_PART = 16 };
enum { STATISTIC_HEAP = 1, HOOK_COUNT = 8 };
/* What luaJIT_setmode is about, and what it does. */
enum { MODE_OF_COMPILER = 0, MODE_OFF = 0 };

static struct lua_interpreter states[STATES];
const allocsample_hooks *lua_hooks;
allocsample_heap *lua_heap;
static bool has_functions; /* all that are needed */
static _Atomic(bool) is_left; /* the process was detached from */
/* Of LuaJIT: see is_refused. */
static _Atomic(bool) has_one;
/* Changes when an interpreter may be at an address where another one was joined. */
static _Atomic(unsigned) generation;

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
static ALWAYS_INLINE void *under(const struct lua_interpreter *state, void *block, size_t old_size, size_t size)
{
    struct shim_quiet before = shim_quiet_begin(counters_of_thread());
    void *result = state->unwatched(state->next_context, block, old_size, size);
    shim_quiet_end(before);
    return result;
}

static allocsample_type type_of_new(size_t type)
{
    if (!lua_layout->has_types)
        return TYPE_UNKNOWN;
    return type >= TYPE_STRING && type <= TYPE_LAST ? (allocsample_type)type : TYPE_PART;
}

static void tell(struct lua_interpreter *state, const void *block, size_t size, allocsample_type type, size_t old_size)
{
    countdown_give_back(&state->countdown, size);
    if (countdown_take(&state->countdown, size))
        return;
    bool is_readable = old_size == 0 || lua_layout->is_stack_readable;
    lua_sampled = is_readable || lua_can_step ? state : NULL;
    lua_replaced_size = is_readable ? 0 : old_size;
    countdown_tell(&state->countdown, lua_hooks, lua_heap, (uintptr_t)block, size, type);
    lua_sampled = NULL;
}

COLD static void *new_sample(struct lua_interpreter *state, size_t type, size_t size)
{
    void *block = under(state, NULL, type, size);
    if (block == NULL)
        countdown_give_back(&state->countdown, size);
    else
        tell(state, block, size, type_of_new(type), 0);
    return block;
}

/* A block that grows and is a sample: by way of a copy, since it may be a stack, and the walker needs one. */
COLD static void *grown_sample(struct lua_interpreter *state, void *old, size_t old_size, size_t size)
{
    void *block = under(state, NULL, 0, size);
    if (block == NULL) {
        countdown_give_back(&state->countdown, size);
        return under(state, old, old_size, size);
    }
    tell(state, block, size, TYPE_PART, old_size);
    memcpy(block, old, old_size < size ? old_size : size);
    lua_hooks->freed(lua_heap, (uintptr_t)old);
    under(state, old, old_size, 0);
    return block;
}

/* Gives the allocator back, on the thread that uses the interpreter. NULL is no main thread: it is being closed. */
COLD static void leave(struct lua_interpreter *state)
{
    if (state->main == NULL)
        return;
    lua.set_allocator(state->main, state->next, state->next_context);
    state->main = NULL;
    atomic_store_explicit(&has_one, false, memory_order_relaxed);
    lua_hooks->nursery_end(lua_heap, &state->nursery, countdown_free(&state->countdown));
    atomic_store_explicit(&state->is_taken, false, memory_order_release);
}

static void *lua_block(void *context, void *block, size_t old_size, size_t size)
{
    struct lua_interpreter *state = context;
    if (UNLIKELY(atomic_load_explicit(&is_left, memory_order_relaxed))) {
        lua_allocator *next = state->next;
        void *next_context = state->next_context;
        leave(state);
        return next(next_context, block, old_size, size);
    }
    if (size == 0) {
        if (shim_is_marked(shim_services.block_filter, block))
            lua_hooks->freed(lua_heap, (uintptr_t)block);
        /* Its last block holds the main thread, behind a pointer's worth of the embedder's or at its start. */
        if ((uintptr_t)state->main - (uintptr_t)block <= sizeof(void *)) {
            state->main = NULL;
            atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
        }
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
        lua_hooks->freed(lua_heap, (uintptr_t)block);
    return under(state, block, old_size, size);
}

/* ---- start ---- */

static void define_types(void)
{
    const char *const types[] = {"string", "table",  "function", "userdata", "thread", lua_layout->last_types[0],
                                 lua_layout->last_types[1]};
    for (allocsample_type type = TYPE_STRING; lua_layout->has_types && type <= TYPE_LAST; type++) {
        if (types[type - TYPE_STRING] != NULL)
            lua_hooks->define_type(lua_heap, type, types[type - TYPE_STRING], "");
    }
    lua_hooks->define_type(lua_heap, TYPE_PART, lua_layout->part, "");
    lua_hooks->define_statistic(lua_heap, STATISTIC_HEAP, "heap", "bytes");
}

bool lua_prepare(void)
{
    return has_functions = lua_find_functions();
}

static void note(const char *text)
{
    uint64_t now = lua_hooks->now_ns();
    lua_hooks->marker(lua_heap, text, now, now);
}

static bool register_heap(void)
{
    uintptr_t start, end;
    lua_hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (lua_hooks == NULL || !has_functions || !lua_frames_make())
        return false;
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_COLLECTED,
        .name = "lua",
        /* Code that LuaJIT compiles is of no module. */
        .flags = ALLOCSAMPLE_WHOLE_CODE | (lua_is_jit ? ALLOCSAMPLE_CODE_IS_NO_MODULE : 0),
        .walk = lua_walk,
    };
    lua_heap = lua_hooks->heap_register(&description);
    if (lua_heap == NULL)
        return false;
    if (lua_has_locks()) {
        note("note: Lua's heap is not sampled: this build has locks of its own (lua_lock), for which the agent could wait forever");
        return false;
    }
    define_types();
    if (lua_is_jit && !luajit_prepare())
        note("note: LuaJIT: functions and lines of Lua are not shown: this build does not keep its stack where known ones do");
    void *code;
    memcpy(&code, &lua.get_stack, sizeof code);
    if (symbols_code_of(code, &start, &end))
        lua_hooks->interpreter_range(lua_heap, start, end);
    lua_hide_resume();
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

static struct lua_interpreter *new_state(void)
{
    for (size_t i = 0; i < STATES; i++) {
        if (!atomic_exchange_explicit(&states[i].is_taken, true, memory_order_acquire))
            return &states[i];
    }
    return NULL;
}

/* The interpreter with this main thread, joined if it was not yet; NULL if it cannot be. */
static struct lua_interpreter *join_interpreter(lua_State *main)
{
    void *context;
    if (!begin())
        return NULL;
    if (lua.get_allocator(main, &context) == lua_block)
        return context;
    struct lua_interpreter *state = new_state();
    if (state == NULL)
        return NULL;
    *state = (struct lua_interpreter){.is_taken = true, .main = main};
    countdown_begin(&state->countdown, lua_hooks, lua_heap, &state->nursery);
    state->next = lua.get_allocator(main, &state->next_context);
    state->unwatched = lua_unwatched(state->next);
    lua.set_allocator(main, lua_block, state);
    state->global = lua_is_jit ? luajit_global_of(main) : 0;
    return state;
}

static void watch_collections(struct lua_interpreter *state, lua_State *thread)
{
    if (!atomic_exchange_explicit(&state->has_witness, true, memory_order_relaxed))
        lua_watch_collections(thread);
}

/* Its libraries are there, and it has compiled nothing yet. */
static void join_at_start(lua_State *main)
{
    struct lua_interpreter *state = join_interpreter(main);
    if (state == NULL)
        return;
    watch_collections(state, main);
    if (lua_is_jit && shim_services.is_asked_for(BRIDGE_APART))
        lua.set_mode(main, 0, MODE_OF_COMPILER | MODE_OFF);
}

/* A function of Lua, for package.loadlib. */
EXPORT int luaopen_allocsample(lua_State *thread)
{
    lua_launched();
    join_at_start(thread);
    lua_can_step = lua_can_step || (lua_heap != NULL && lua_steps_are_right(thread));
    return 0;
}

/* LuaJIT does not return the memory of a state that is closed with another allocator than its own. A program's first state lives as
 * long as the program; those of its threads may come and go. */
static bool is_refused(lua_State *thread)
{
    void *context;
    lua_allocator *known = luajit_allocator();
    return lua_is_jit && (known == NULL || lua.get_allocator(thread, &context) == known) &&
           atomic_exchange_explicit(&has_one, true, memory_order_relaxed);
}

void lua_join_embedded(lua_State *thread)
{
    if (begin() && !is_refused(thread))
        join_at_start(thread);
}

/* ---- attach ---- */

/* The main thread of the interpreter that `thread` is of; NULL: Lua 5.1 does not say. */
static lua_State *main_of(lua_State *thread)
{
    if (lua_is_jit)
        return luajit_main_of(luajit_global_of(thread));
    lua_State *main = NULL;
    if (lua.check_stack(thread, 1) == 0)
        return NULL;
    if (lua_layout->main == 0) {
        main = lua.push_thread(thread) != 0 ? thread : NULL;
    } else {
        lua.raw_get_number(thread, lua_layout->registry, lua_layout->main);
        main = lua.to_thread(thread, -1);
    }
    lua.set_top(thread, -2);
    return main;
}

/* Between two instructions of Lua, where any code may run. */
static void on_instruction(lua_State *thread, struct lua_frame *unused)
{
    void *context;
    (void)unused;
    lua.set_hook(thread, NULL, 0, 0);
    if (lua.get_allocator(thread, &context) == lua_block && !atomic_load_explicit(&is_left, memory_order_relaxed) &&
        lua.check_stack(thread, 8) != 0)
        watch_collections(context, thread);
}

/* Has Lua call on_instruction, unless the program has a hook of its own: that may be asked for at any time. Code that LuaJIT has
 * compiled does not heed hooks. */
static void watch_collections_soon(struct lua_interpreter *state, lua_State *thread)
{
    if (!atomic_load_explicit(&state->has_witness, memory_order_relaxed) && lua.get_hook(thread) == NULL)
        lua.set_hook(thread, on_instruction, HOOK_COUNT, 1);
}

/* A function of the interface is called. */
static void on_call(lua_State *thread, bool may_collect)
{
    static _Thread_local struct {
        lua_State *thread;
        unsigned generation;
    } last __attribute__((tls_model("initial-exec")));
    void *context;
    unsigned current = atomic_load_explicit(&generation, memory_order_relaxed);
    if (LIKELY(last.thread == thread && last.generation == current) || atomic_load_explicit(&is_left, memory_order_relaxed))
        return;
    struct lua_interpreter *state = NULL;
    if (lua.get_allocator(thread, &context) == lua_block) {
        state = context;
    } else {
        lua_State *main = main_of(thread);
        if (main != NULL && !is_refused(thread))
            state = join_interpreter(main);
        lua_can_step = lua_can_step || lua_steps_are_right(thread);
    }
    if (state != NULL && may_collect && lua.check_stack(thread, 8) != 0)
        watch_collections(state, thread);
    else if (state != NULL)
        watch_collections_soon(state, thread);
    last.thread = thread;
    last.generation = current;
}

/* Called from LuaJIT's own allocator, where no other functions of its interface may be used than those below. */
static void on_block(void *context)
{
    if (atomic_load_explicit(&has_one, memory_order_relaxed) || atomic_load_explicit(&is_left, memory_order_relaxed))
        return;
    lua_State *main = luajit_main_by_allocator((uintptr_t)context);
    struct lua_interpreter *state = main != NULL && !is_refused(main) ? join_interpreter(main) : NULL;
    if (state != NULL)
        watch_collections_soon(state, main);
}

void lua_attach(void)
{
    static bool is_tried;
    if (!has_functions && !is_tried) {
        is_tried = true;
        lua_prepare();
    }
    if (!has_functions || !lua_is_there() || !begin())
        return;
    luajit_note_again();
    resume_heap(lua_hooks, lua_heap);
    atomic_store_explicit(&is_left, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    if (!lua_watch(on_call, lua_is_jit ? luajit_allocator() : NULL, on_block))
        shim_services.decline("lua", "Lua", "has no function whose calls could be watched");
}

void lua_detach(void)
{
    if (lua_heap == NULL)
        return;
    lua_unwatch();
    lua_leave_collections();
    lua_hooks->control(lua_heap, ALLOCSAMPLE_STOP, 0);
    atomic_store_explicit(&is_left, true, memory_order_relaxed);
}
