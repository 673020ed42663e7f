/* The functions of the interpreter that the bridge calls, all of them public, and the release that it is of. */
#define _GNU_SOURCE
#include "lua.h"
#include "kit/instructions.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <string.h>

#define PART "part of a table, stack or buffer"
#define REGISTRY_5_1 (-10000)
#define REGISTRY_5_2 (-1001000)
#define REGISTRY_5_5 (-1073742823)
static const struct lua_layout
    lua_5_1 = {40, 48, 0, true, false, {NULL}, PART, REGISTRY_5_1, 0},
    lua_5_2 = {40, 44, 0, true, true, {"prototype", "upvalue"}, PART, REGISTRY_5_2, 1},
    lua_5_3 = {40, 44, 0, true, true, {"prototype"}, "upvalue, or part of a table, stack or buffer", REGISTRY_5_2, 1},
    lua_5_4 = {48, 52, 128, true, true, {"upvalue", "prototype"}, PART, REGISTRY_5_2, 1},
    lua_5_4_5 = {48, 52, 128, false, true, {"upvalue", "prototype"}, PART, REGISTRY_5_2, 1},
    lua_5_5 = {48, 52, 136, false, true, {"upvalue", "prototype"}, PART, REGISTRY_5_5, 3};

const struct lua_layout *lua_layout;
struct lua_functions lua;
bool lua_is_jit;

static void *symbol(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Which release the interpreter is of, by what it has. */
static const struct lua_layout *find_layout(void)
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

static void find_optional(void *slot, const char *name)
{
    void *found = symbol(name);
    memcpy(slot, &found, sizeof found);
}

bool lua_find_functions(void)
{
    static const struct symbol symbols[] = {
        {&lua.get_allocator, "lua_getallocf"},    {&lua.set_allocator, "lua_setallocf"},
        {&lua.get_stack, "lua_getstack"},         {&lua.get_info, "lua_getinfo"},
        {&lua.get_local, "lua_getlocal"},         {&lua.get_upvalue, "lua_getupvalue"},
        {&lua.to_thread, "lua_tothread"},         {&lua.to_function, "lua_tocfunction"},
        {&lua.status, "lua_status"},              {&lua.gc, "lua_gc"},
        {&lua.get_top, "lua_gettop"},             {&lua.set_top, "lua_settop"},
        {&lua.check_stack, "lua_checkstack"},     {&lua.push_thread, "lua_pushthread"},
        {&lua.push_value, "lua_pushvalue"},       {&lua.create_table, "lua_createtable"},
        {&lua.push_function, "lua_pushcclosure"}, {&lua.set_field, "lua_setfield"},
        {&lua.set_metatable, "lua_setmetatable"}, {&lua.get_metatable, "lua_getmetatable"},
        {&lua.get_hook, "lua_gethook"},           {&lua.set_hook, "lua_sethook"},
        {&lua.raw_get_number, "lua_rawgeti"},     {&lua.to_pointer, "lua_topointer"},
    };
    static const struct symbol of_jit[] = {
        {&lua.new_state, "luaL_newstate"}, {&lua.new_thread, "lua_newthread"}, {&lua.close, "lua_close"},
        {&lua.load, "luaL_loadbuffer"},    {&lua.resume, "lua_resume"},        {&lua.open_jit, "luaopen_jit"},
        {&lua.type, "lua_type"},           {&lua.push_string, "lua_pushstring"},
        {&lua.push_boolean, "lua_pushboolean"}, {&lua.raw_get, "lua_rawget"},  {&lua.remove, "lua_remove"},
    };
    if (!symbols_find(symbols, sizeof symbols / sizeof symbols[0], symbol))
        return false;
    find_optional(&lua.new_userdata_5_4, "lua_newuserdatauv");
    find_optional(&lua.new_userdata, "lua_newuserdata");
    lua_layout = find_layout();
    find_optional(&lua.set_mode, "luaJIT_setmode");
    lua_is_jit = lua.set_mode != NULL;
    if (lua_is_jit && !symbols_find(of_jit, sizeof of_jit / sizeof of_jit[0], symbol))
        return false;
    return lua.new_userdata != NULL || lua.new_userdata_5_4 != NULL;
}

bool lua_is_there(void)
{
    void *known;
    memcpy(&known, &lua.get_stack, sizeof known);
    return known != NULL && symbol("lua_getstack") == known;
}

bool lua_has_locks(void)
{
    uintptr_t at, end;
    void *code;
    memcpy(&code, &lua.get_stack, sizeof code);
    if (lua_is_jit || !symbols_extent_of(code, &at, &end))
        return false;
    while (at < end) {
        struct instruction next = instruction_at((const uint8_t *)at, end - at, at);
        if (next.kind == INSTRUCTION_CALL)
            return true;
        if (next.kind == INSTRUCTION_UNKNOWN)
            return false;
        at += next.length;
    }
    return false;
}
