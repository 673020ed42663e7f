/* Lua's functions and lines, by its debug interface, which neither allocates nor raises errors for what is asked here. */
#define _GNU_SOURCE
#include "lua.h"

#include <stdio.h>
#include <string.h>

/* Those that have resumed each other at most. */
#define COROUTINES 32
/* Offset in a call of the pointer to its caller, since 5.2. The last one is of no function. */
#define CALLER 16
#define LARGEST_STACK (1 << 24)

_Thread_local const struct lua_interpreter *lua_sampled;
_Thread_local size_t lua_replaced_size;
bool lua_can_step;
static struct names functions;

static uint32_t number_at(const struct lua_frame *frame, size_t offset)
{
    int number;
    memcpy(&number, (const char *)frame + offset, sizeof number);
    return number > 0 ? (uint32_t)number : 0;
}

static bool is_of_lua(const struct lua_frame *frame)
{
    return frame->what != NULL && (frame->what[0] == 'L' || frame->what[0] == 'm');
}

static uint32_t number_of(const struct lua_frame *frame)
{
    char made_up[64];
    uint32_t first_line = number_at(frame, lua_layout->first_line);
    /* "@file", "=name", or the code itself. */
    const char *source = frame->source[0] == '@' || frame->source[0] == '=' ? frame->source + 1 : "(string)";
    const char *name = frame->what[0] == 'm' ? "main chunk" : frame->name;
    if (name == NULL) {
        snprintf(made_up, sizeof made_up, "function at line %u", first_line);
        name = made_up;
    }
    return names_function(&functions, lua_hooks, lua_heap, name, source, first_line);
}

/* ---- calls of Lua 5.4 and later ---- */

static uintptr_t caller_of(uintptr_t call)
{
    return *(const uintptr_t *)(call + CALLER);
}

static uintptr_t *call_of(struct lua_frame *frame)
{
    return (uintptr_t *)((char *)frame + lua_layout->call);
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
    struct lua_frame frame;
    return lua_replaced_size != 0 && lua.get_stack(thread, 0, &frame) != 0 &&
           function_of(*call_of(&frame)) < lua_replaced_size;
}

/* Makes the frame at `level` of the one at `level` - 1; false if there is none. */
static bool next_frame(lua_State *thread, int level, struct lua_frame *frame)
{
    if (!lua_can_step || level == 0)
        return lua.get_stack(thread, level, frame) != 0;
    uintptr_t caller = caller_of(*call_of(frame));
    *call_of(frame) = caller;
    return caller != 0 && caller_of(caller) != 0;
}

bool lua_steps_are_right(lua_State *thread)
{
    struct lua_frame frame;
    uintptr_t calls[2];
    for (int level = 0; level < 2; level++) {
        if (lua_layout->call == 0 || lua.get_stack(thread, level, &frame) == 0)
            return false;
        calls[level] = *call_of(&frame);
    }
    return caller_of(calls[0]) == calls[1] && function_of(calls[1]) < function_of(calls[0]) &&
           function_of(calls[0]) - function_of(calls[1]) < LARGEST_STACK;
}

/* ---- walks ---- */

size_t lua_walk_thread(lua_State *thread, bool has_line, allocsample_frame *frames, size_t capacity)
{
    size_t count = 0;
    struct lua_frame frame;
    for (int level = 0; count < capacity && next_frame(thread, level, &frame); level++) {
        bool is_line_known = has_line || level > 0;
        if (lua.get_info(thread, is_line_known ? "nSl" : "nS", &frame) == 0 || !is_of_lua(&frame))
            continue;
        uint32_t line = is_line_known ? number_at(&frame, lua_layout->line) : 0;
        frames[count++] = (allocsample_frame){.function = number_of(&frame), .line = line};
    }
    return count;
}

/* Coroutines that have resumed each other, the main thread first. */
struct chain {
    lua_State *threads[COROUTINES];
    size_t depth;
};

/* Whether it runs, or waits for one that it has resumed, and is not in the chain yet. One that is not resumed has yielded, has failed,
 * or has no frames. */
static bool is_next(const struct chain *chain, lua_State *thread)
{
    struct lua_frame frame;
    for (size_t i = 0; i < chain->depth; i++)
        if (chain->threads[i] == thread)
            return false;
    return thread != NULL && lua.status(thread) == LUA_IS_OK && lua.get_stack(thread, 0, &frame) != 0;
}

/* The coroutine that `thread` has resumed, or NULL. A thread that has is in a function of C, whose stack has room above its top; one
 * in a function of Lua is the one that runs, and is not touched. The coroutine is the function's first argument, as coroutine.resume
 * has it, or its first captured value, as functions that coroutine.wrap made have it. */
static lua_State *resumed_by(const struct chain *chain, lua_State *thread)
{
    struct lua_frame frame;
    lua_State *resumed = NULL;
    if (lua.get_stack(thread, 0, &frame) == 0 || lua.get_info(thread, "S", &frame) == 0 || frame.what == NULL ||
        frame.what[0] != 'C' || lua.get_info(thread, "f", &frame) == 0)
        return NULL;
    if (lua.get_upvalue(thread, -1, 1) != NULL) {
        resumed = lua.to_thread(thread, -1);
        lua.set_top(thread, -2);
    }
    if (!is_next(chain, resumed) && lua.get_local(thread, &frame, 1) != NULL) {
        resumed = lua.to_thread(thread, -1);
        lua.set_top(thread, -2);
    }
    lua.set_top(thread, -2);
    return is_next(chain, resumed) ? resumed : NULL;
}

/* Adds a coroutine, and those that lead from it to the one that runs. False: its stack may be moving. */
static bool add(struct chain *chain, lua_State *thread)
{
    for (; thread != NULL && chain->depth < COROUTINES; thread = resumed_by(chain, thread)) {
        if (may_be_moving(thread))
            return false;
        chain->threads[chain->depth++] = thread;
    }
    return true;
}

/* The coroutine that C has resumed, if it is of this interpreter and not in the chain. */
static lua_State *resumed_by_c(const struct lua_interpreter *of, const struct chain *chain)
{
    void *context;
    if (lua_resumed == NULL || !is_next(chain, lua_resumed))
        return NULL;
    lua.get_allocator(lua_resumed, &context);
    return context == of ? lua_resumed : NULL;
}

size_t lua_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    struct chain chain = {.depth = 0};
    const struct lua_interpreter *of = lua_sampled;
    size_t count = 0;
    if (of == NULL)
        return 0;
    if (lua_is_jit)
        return luajit_walk(of, frames, capacity);
    if (!add(&chain, of->main) || !add(&chain, resumed_by_c(of, &chain)))
        return 0;
    while (chain.depth > 0)
        count += lua_walk_thread(chain.threads[--chain.depth], true, frames + count, capacity - count);
    return count;
}

bool lua_frames_make(void)
{
    return names_make(&functions);
}

void lua_frames_after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
}
