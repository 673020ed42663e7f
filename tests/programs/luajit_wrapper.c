/* A library for LuaJIT that stands before each function of C, as one does that turns exceptions of C++ into Lua's errors. */
typedef struct lua_State lua_State;
typedef int (*function)(lua_State *);

enum { WRAP_FUNCTIONS = 16, ON = 256 };

void lua_pushlightuserdata(lua_State *thread, void *pointer);
int luaJIT_setmode(lua_State *thread, int index, int mode);

static int call(lua_State *thread, function wrapped)
{
    return wrapped(thread);
}

int luaopen_wrapper(lua_State *thread)
{
    lua_pushlightuserdata(thread, (void *)call);
    luaJIT_setmode(thread, -1, WRAP_FUNCTIONS | ON);
    return 0;
}
