/* A program with an interpreter of Lua in it, linked to Lua's shared library. It runs its argument, opens and closes interpreters in
 * threads besides, and closes the first one. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

typedef struct lua_State lua_State;

lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *);
int luaL_loadstring(lua_State *, const char *);
const char *lua_tolstring(lua_State *, int, size_t *);
void lua_close(lua_State *);
#ifdef JIT
int lua_pcall(lua_State *, int, int, int);
#define CALL(state) lua_pcall(state, 0, 0, 0)
#else
int lua_pcallk(lua_State *, int, int, int, ptrdiff_t, void *);
#define CALL(state) lua_pcallk(state, 0, 0, 0, 0, NULL)
#endif

static lua_State *run(const char *code)
{
    lua_State *state = luaL_newstate();
    luaL_openlibs(state);
    if (luaL_loadstring(state, code) != 0 || CALL(state) != 0)
        printf("%s\n", lua_tolstring(state, -1, NULL));
    return state;
}

static void *in_thread(void *unused)
{
    (void)unused;
    for (int i = 0; i < 50; i++)
        lua_close(run("local kept = {} for i = 1, 1000 do kept[i] = {i} end"));
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    lua_State *first = run(arguments[1]);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, in_thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    lua_close(first);
    return 0;
}
