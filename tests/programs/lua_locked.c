/* Lua as it is when it was built with a lock (`lua_lock`): these functions of its interface take it, and allocate meanwhile. The lock
 * notices a thread that would wait for itself. Linked to Lua's shared library, whose functions are behind those here. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct lua_State lua_State;

lua_State *luaL_newstate(void);
void luaL_openlibs(lua_State *);
void lua_settop(lua_State *, int);
void lua_close(lua_State *);

static pthread_mutex_t lock = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

static void take(void)
{
    if (pthread_mutex_lock(&lock) != 0)
        abort();
}

int lua_getstack(lua_State *state, int level, void *frame)
{
    static int (*next)(lua_State *, int, void *);
    take();
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "lua_getstack");
    int result = next(state, level, frame);
    pthread_mutex_unlock(&lock);
    return result;
}

void lua_createtable(lua_State *state, int elements, int fields)
{
    static void (*next)(lua_State *, int, int);
    take();
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "lua_createtable");
    next(state, elements, fields);
    pthread_mutex_unlock(&lock);
}

static void work(lua_State *state)
{
    for (int i = 0; i < 20000; i++) {
        lua_createtable(state, 8, 0);
        lua_settop(state, -2);
    }
}

/* Works at the start and for each line, and ends as it is told. */
int main(void)
{
    char line[16];
    int status = 0;
    lua_State *state = luaL_newstate();
    luaL_openlibs(state);
    work(state);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && sscanf(line, "end %d", &status) != 1) {
        work(state);
        puts("worked");
        fflush(stdout);
    }
    lua_close(state);
    return status;
}
