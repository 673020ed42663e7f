/* Programs that embed Lua's shared library take the agent when they open an interpreter's libraries.
 *
 * They do not read LUA_INIT. Before that moment an interpreter has some KiB, and no function by which the agent finds LuaJIT's
 * collections. Such programs resume coroutines themselves, too. */
#define _GNU_SOURCE
#include "lua.h"

#include <dlfcn.h>
#include <string.h>

/* luaL_openlibs is a macro for the other one since Lua 5.5. */
static void (*open_libraries)(lua_State *);
static void (*open_selected)(lua_State *, int, int);
static lua_of_interface *resume;

static void open_libraries_of_program(lua_State *thread)
{
    open_libraries(thread);
    lua_join_embedded(thread);
}

static void open_selected_of_program(lua_State *thread, int load, int preload)
{
    open_selected(thread, load, preload);
    lua_join_embedded(thread);
}

static uintptr_t resume_of_program(lua_State *thread, uintptr_t b, uintptr_t c, uintptr_t d)
{
    return lua_resume_by(resume, thread, b, c, d);
}

/* The program's own calls lead to the first function of this name in the global scope, too. */
static void watch(const char *name, void *function, void *own)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &found, sizeof found);
    if (found != NULL)
        shim_services.redirect_in_program(name, own);
}

void lua_watch_embedders(void)
{
    watch("luaL_openlibs", &open_libraries, (void *)open_libraries_of_program);
    watch("luaL_openselectedlibs", &open_selected, (void *)open_selected_of_program);
    watch("lua_resume", &resume, (void *)resume_of_program);
}
