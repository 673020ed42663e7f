/* Lua's collections. Lua tells nobody of them, but it finalizes what they find dead: a userdata that nobody refers to is the
 * witness of one, and leaves another behind. */
#define _GNU_SOURCE
#include "lua.h"

#include <string.h>

enum { GC_COUNT = 3, STATISTIC_HEAP = 1, TYPE_OF_TABLES = 5 };

static _Atomic(uint64_t) collections;
/* Counts detaches. */
static _Atomic(uint64_t) epoch;

/* The witness of the next collection: it holds the epoch that it was made in. */
static void leave_witness(lua_State *thread)
{
    uint64_t now = atomic_load_explicit(&epoch, memory_order_relaxed);
    void *witness =
        lua.new_userdata_5_4 != NULL ? lua.new_userdata_5_4(thread, sizeof now, 0) : lua.new_userdata(thread, sizeof now);
    memcpy(witness, &now, sizeof now);
}

static bool is_of_now(lua_State *thread, int index)
{
    uint64_t made;
    memcpy(&made, lua.to_pointer(thread, index), sizeof made);
    return made == atomic_load_explicit(&epoch, memory_order_relaxed);
}

/* A finalizer: its argument is the witness. When it was found dead is now, about; how long that took nobody knows. */
static int on_witness_dead(lua_State *thread)
{
    if (!is_of_now(thread, 1))
        return 0;
    uint64_t now = lua_hooks->now_ns();
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
    lua_hooks->gc(lua_heap, &gc);
    leave_witness(thread);
    if (lua.get_metatable(thread, 1) != 0)
        lua.set_metatable(thread, -2);
    return 0;
}

/* Replaces the top of the stack by one of its fields, past metatables, or by nil if it is no table. */
static void raw_field(lua_State *thread, const char *name)
{
    if (lua.type(thread, -1) == TYPE_OF_TABLES) {
        lua.push_string(thread, name);
        lua.raw_get(thread, -2);
    } else {
        lua.push_boolean(thread, 0);
    }
    lua.remove(thread, -2);
}

/* Where `collectgarbage` is: a function of C of LuaJIT's own. NULL: the program has another one, or none. Globals may be a program's
 * own, with functions that raise errors. */
static const char *function_of_luajit(lua_State *thread)
{
    lua.push_value(thread, lua_layout->registry);
    raw_field(thread, "_LOADED");
    raw_field(thread, "_G");
    raw_field(thread, "collectgarbage");
    const char *function = lua.to_function(thread, -1) != NULL ? lua.to_pointer(thread, -1) : NULL;
    lua.set_top(thread, -2);
    return function;
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
    const char *luajits = function_of_luajit(thread);
    lua_c_function *finalizer = on_witness_dead;
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

void lua_watch_collections(lua_State *thread)
{
    lua.push_function(thread, on_witness_dead, 0);
    if (lua_is_jit && !call_unwrapped(thread)) {
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

void lua_leave_collections(void)
{
    atomic_fetch_add_explicit(&epoch, 1, memory_order_relaxed);
}
