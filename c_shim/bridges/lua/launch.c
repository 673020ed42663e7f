/* Lua's interpreters take the agent whoever starts them: a shell, a script, `env`, a first line with #!.
 *
 * They run what LUA_INIT holds, or LUA_INIT_5_4 and its like instead, before the program. The program's own calls of getenv
 * come to us: until the agent is there, what the user has in such a variable has a call of the agent in front of it. The
 * environment stays as it is: later calls, and children, find what the user has set. */
#define _GNU_SOURCE
#include "bridge.h"
#include "kit/memory.h"
#include "lua.h"

#include <stdlib.h>
#include <string.h>

#define VARIABLE "LUA_INIT"

static _Atomic(bool) is_launched;

/* Text that is measured, where `to` is NULL, or written. */
struct text {
    char *to;
    size_t bytes;
};

static void add_bytes(struct text *text, const char *bytes, size_t count)
{
    if (text->to != NULL)
        memcpy(text->to + text->bytes, bytes, count);
    text->bytes += count;
}

static void add(struct text *text, const char *string)
{
    add_bytes(text, string, strlen(string));
}

/* Writes a string as a Lua literal. */
static void add_quoted(struct text *text, const char *string)
{
    add(text, "\"");
    for (; *string != 0; string++) {
        if (*string == '"' || *string == '\\' || *string == '\n')
            add(text, "\\");
        add_bytes(text, string, 1);
    }
    add(text, "\"");
}

static void add_code(struct text *text, const char *agent, const char *of_user)
{
    add(text, "do local join = package.loadlib(");
    add_quoted(text, agent);
    add(text, ", 'luaopen_allocsample') if join then join() end end ");
    if (of_user[0] == '@') {
        add(text, "dofile(");
        add_quoted(text, of_user + 1);
        add(text, ")");
    } else {
        add(text, of_user);
    }
    add_bytes(text, "", 1);
}

/* Stays for ever: the interpreter runs it. The user's own if there is no memory. */
static char *with_agent(char *of_user)
{
    struct shim_object own;
    if (!shim_services.find_object((const void *)&is_launched, &own))
        return of_user;
    const char *code = of_user == NULL ? "" : of_user;
    struct text text = {NULL, 0};
    add_code(&text, own.path, code);
    text.to = memory_map(text.bytes);
    if (text.to == NULL)
        return of_user;
    text.bytes = 0;
    add_code(&text, own.path, code);
    return text.to;
}

static char *getenv_of_program(const char *name)
{
    char *value = getenv(name);
    size_t length = sizeof VARIABLE - 1;
    if (atomic_load_explicit(&is_launched, memory_order_relaxed) || strncmp(name, VARIABLE, length) != 0)
        return value;
    /* Where the one for its version is not set, the interpreter asks for the other. */
    bool is_asked = name[length] == 0 || (name[length] == '_' && value != NULL);
    return is_asked ? with_agent(value) : value;
}

static void join(void)
{
    if (!lua_prepare())
        return;
    shim_services.redirect_in_program("getenv", (void *)getenv_of_program);
    lua_watch_embedders();
}

void lua_launched(void)
{
    atomic_store_explicit(&is_launched, true, memory_order_relaxed);
}

const struct bridge bridge_lua = {
    .name = "lua",
    .runtime_symbol = "lua_setallocf",
    .join = join,
    .attach = lua_attach,
    .detach = lua_detach,
    .after_fork_in_child = lua_frames_after_fork_in_child,
};
