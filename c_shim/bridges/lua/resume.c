/* Coroutines that functions of C resume, as HAProxy and other programs with an event loop do. The debug interface leads from no
 * function to them, and Lua does not say which coroutine runs. (LuaJIT does.)
 *
 * lua_resume returns whatever happens in the coroutine. */
#define _GNU_SOURCE
#include "lua.h"
#include "kit/symbols.h"

#include <string.h>

_Thread_local lua_State *lua_resumed __attribute__((tls_model("initial-exec")));

uintptr_t lua_resume_by(lua_of_interface *resume, lua_State *thread, uintptr_t b, uintptr_t c, uintptr_t d)
{
    lua_State *before = lua_resumed;
    lua_resumed = thread;
    uintptr_t status = resume(thread, b, c, d, 0, 0);
    lua_resumed = before;
    return status;
}

/* Its frame is on the stacks of all that the coroutine calls. */
void lua_hide_resume(void)
{
    uintptr_t address, start, end;
    uintptr_t (*function)(lua_of_interface *, lua_State *, uintptr_t, uintptr_t, uintptr_t) = lua_resume_by;
    memcpy(&address, &function, sizeof address);
    if (symbols_unwound_function_of(address, &start, &end))
        lua_hooks->interpreter_range(lua_heap, start, end);
}
