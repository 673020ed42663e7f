/* Leads calls of an interpreter that runs already to the bridge, since its record of the main thread is in no variable.
 *
 * Functions of the interface have the interpreter as their first argument, on the thread that uses it, and where its interface may be
 * used. A function's first instruction, and no other, gets a jump: threads stand before it or behind it, never within. A jump of
 * two bytes is enough on x86-64: it leads to padding, behind a jump or before a function, which no thread comes to otherwise, and
 * which has the jump to us. Functions that begin with an instruction of one byte, or have no padding near, are left alone.
 *
 * LuaJIT's own functions rarely call its interface. So its allocator is watched too.
 *
 * The jumps in the padding, and what the first instructions were replaced by, stay: a thread may be there at any time. */
#define _GNU_SOURCE
#include "lua.h"
#include "kit/code.h"
#include "kit/instructions.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

enum { FUNCTIONS = 21, RESUME = 10, NUMBER = 19, ALLOCATOR = 20, STUB = 64, SHORT_JUMP_BYTES = 2, SHORT_JUMP = 0xeb, REACH = 127, TARGETS = 32 };

static lua_on_call *on_call;
static lua_on_block *on_block;
/* The bridge calls such functions itself. */
static _Thread_local bool is_inside __attribute__((tls_model("initial-exec")));

static struct {
    const char *name;        /* NULL: the bridge knows where it is */
    bool may_collect;        /* whether the function may run a step of a collection, and finalizers */
    uintptr_t start;         /* 0: it is not there, or left alone */
    uintptr_t at;            /* its first instruction */
    uint8_t before[8], after[8];
    size_t length;           /* of the replaced instruction */
    lua_of_interface *original;
} watched[FUNCTIONS] = {
    {.name = "lua_pushinteger"},
    {.name = "lua_pushlstring", .may_collect = true},
    {.name = "lua_pushstring", .may_collect = true},
    {.name = "lua_createtable", .may_collect = true},
    {.name = "lua_pushcclosure", .may_collect = true},
    {.name = "lua_newuserdata", .may_collect = true},
    {.name = "lua_newuserdatauv", .may_collect = true},
    {.name = "lua_newthread", .may_collect = true},
    {.name = "lua_getfield", .may_collect = true},
    {.name = "lua_setfield", .may_collect = true},
    [RESUME] = {.name = "lua_resume", .may_collect = true},
    {.name = "lua_pcall", .may_collect = true},
    {.name = "lua_pcallk", .may_collect = true},
    {.name = "lua_load", .may_collect = true},
    {.name = "lua_gc", .may_collect = true},
    {.name = "lua_type"},
    {.name = "lua_tolstring"},
    {.name = "lua_pushvalue"},
    {.name = "lua_pushboolean"},
    /* These have other arguments. */
    [NUMBER] = {.name = "lua_pushnumber"},
    [ALLOCATOR] = {.name = NULL},
};

static void note_call(lua_State *thread, bool may_collect)
{
    if (is_inside)
        return;
    int error = errno;
    is_inside = true;
    on_call(thread, may_collect);
    is_inside = false;
    errno = error;
}

/* A jump to the original is the last thing that they do: there is no frame of ours when it runs, but for lua_resume. */
#define WATCHED(INDEX)                                                                                                 \
    static uintptr_t call_##INDEX(lua_State *thread, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)  \
    {                                                                                                                  \
        note_call(thread, watched[INDEX].may_collect);                                                                 \
        return watched[INDEX].original(thread, b, c, d, e, f);                                                         \
    }
WATCHED(0)
WATCHED(1)
WATCHED(2)
WATCHED(3)
WATCHED(4)
WATCHED(5)
WATCHED(6)
WATCHED(7)
WATCHED(8)
WATCHED(9)
WATCHED(11)
WATCHED(12)
WATCHED(13)
WATCHED(14)
WATCHED(15)
WATCHED(16)
WATCHED(17)
WATCHED(18)

static uintptr_t call_resume(lua_State *thread, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)
{
    (void)e;
    (void)f;
    note_call(thread, watched[RESUME].may_collect);
    return lua_resume_by(watched[RESUME].original, thread, b, c, d);
}

static lua_of_interface *const calls[NUMBER] = {
    call_0,      call_1,  call_2,  call_3,  call_4,  call_5,  call_6,  call_7,  call_8,  call_9,
    call_resume, call_11, call_12, call_13, call_14, call_15, call_16, call_17, call_18,
};

static void call_number(lua_State *thread, double number)
{
    void (*original)(lua_State *, double);
    note_call(thread, watched[NUMBER].may_collect);
    memcpy(&original, &watched[NUMBER].original, sizeof original);
    original(thread, number);
}

static void *call_allocator(void *context, void *block, size_t old_size, size_t size)
{
    lua_allocator *original;
    if (!is_inside) {
        int error = errno;
        is_inside = true;
        on_block(context);
        is_inside = false;
        errno = error;
    }
    memcpy(&original, &watched[ALLOCATOR].original, sizeof original);
    return original(context, block, old_size, size);
}

static void (*stub_of(size_t index))(void)
{
    void (*stub)(void);
    void (*number)(lua_State *, double) = call_number;
    lua_allocator *allocator = call_allocator;
    if (index == NUMBER)
        memcpy(&stub, &number, sizeof stub);
    else if (index == ALLOCATOR)
        memcpy(&stub, &allocator, sizeof stub);
    else
        memcpy(&stub, &calls[index], sizeof stub);
    return stub;
}

/* ---- where the jumps are ---- */

#if defined(__x86_64__)

/* No-op instructions that assemblers and linkers use as padding. Longer ones start with prefixes. */
static size_t nothing_at(const uint8_t *at, const uint8_t *end)
{
    static const uint8_t nothings[][9] = {
        {0xcc}, {0x90}, {0x0f, 0x1f, 0x00}, {0x0f, 0x1f, 0x40}, {0x0f, 0x1f, 0x44}, {0x0f, 0x1f, 0x80}, {0x0f, 0x1f, 0x84}};
    static const uint8_t lengths[] = {1, 1, 3, 4, 5, 7, 8};
    size_t prefixes = 0;
    while (at + prefixes < end && (at[prefixes] == 0x66 || at[prefixes] == 0x2e))
        prefixes++;
    for (size_t i = 0; i < sizeof lengths; i++) {
        size_t length = prefixes + lengths[i];
        if ((size_t)(end - at) >= length && memcmp(at + prefixes, nothings[i], lengths[i]) == 0)
            return length;
    }
    return 0;
}

static size_t padding_at(const uint8_t *at, const uint8_t *end)
{
    size_t bytes = 0;
    for (size_t length; at + bytes < end && (length = nothing_at(at + bytes, end)) != 0;)
        bytes += length;
    return bytes;
}

/* Whether the bytes before a function, enough for a jump, are padding. */
static bool has_padding(uintptr_t function)
{
    const uint8_t *at = (const uint8_t *)function - CODE_JUMP_BYTES, *end = (const uint8_t *)function;
    /* The first instruction of it may begin earlier. */
    for (size_t earlier = 0; earlier < 11; earlier++) {
        if (padding_at(at - earlier, end) == CODE_JUMP_BYTES + earlier)
            return true;
    }
    return false;
}

/* Whether the bytes that a jump takes there are those of another one. */
static bool is_used(uintptr_t padding, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        uintptr_t other = watched[i].at + SHORT_JUMP_BYTES + (uintptr_t)(int8_t)watched[i].after[1];
        if (watched[i].start != 0 && watched[i].after[0] == SHORT_JUMP && padding + CODE_JUMP_BYTES > other &&
            other + CODE_JUMP_BYTES > padding)
            return true;
    }
    return false;
}

/* Padding behind an instruction that goes elsewhere, which none before leads to; 0: there is none near. Instructions are read one
 * after the other, up to one that is not known. */
static uintptr_t padding_behind(uintptr_t at, uintptr_t end, size_t index)
{
    uintptr_t targets[TARGETS], last = at + SHORT_JUMP_BYTES + REACH;
    size_t count = 0;
    for (uintptr_t next = at; next < last && next + INSTRUCTION_LONGEST + REACH < end;) {
        struct instruction found = instruction_at((const uint8_t *)next, INSTRUCTION_LONGEST, next);
        if (found.kind == INSTRUCTION_UNKNOWN || count == TARGETS)
            return 0;
        if (found.kind == INSTRUCTION_CONDITION || found.kind == INSTRUCTION_JUMP)
            targets[count++] = found.target;
        next += found.length;
        if (found.kind != INSTRUCTION_JUMP && found.kind != INSTRUCTION_END)
            continue;
        size_t bytes = padding_at((const uint8_t *)next, (const uint8_t *)next + INSTRUCTION_LONGEST);
        bool is_free = bytes >= CODE_JUMP_BYTES && next <= last && !is_used(next, index);
        for (size_t i = 0; i < count; i++)
            is_free &= targets[i] - next >= bytes;
        if (is_free)
            return next;
        next += bytes;
    }
    return 0;
}

/* Padding before functions of the interface, whose beginnings are known. */
static uintptr_t padding_before(uintptr_t at, size_t index)
{
    static const char *const names[] = {
        "lua_pushinteger", "lua_pushlstring", "lua_pushstring", "lua_createtable", "lua_pushcclosure", "lua_newuserdata",
        "lua_newuserdatauv", "lua_newthread", "lua_getfield", "lua_setfield", "lua_resume", "lua_pcall", "lua_pcallk", "lua_load",
        "lua_gc", "lua_pushnumber", "lua_pushvalue", "lua_pushnil", "lua_pushvfstring", "lua_pushfstring", "lua_pushboolean",
        "lua_pushlightuserdata", "lua_pushthread", "lua_gettable", "lua_geti", "lua_rawget", "lua_rawgeti", "lua_rawgetp",
        "lua_getmetatable", "lua_getuservalue", "lua_getiuservalue", "lua_getfenv", "lua_getglobal", "lua_setglobal",
        "lua_settable", "lua_seti", "lua_rawset", "lua_rawseti", "lua_rawsetp", "lua_setmetatable", "lua_setuservalue",
        "lua_setfenv", "lua_call", "lua_callk", "lua_cpcall", "lua_dump", "lua_status", "lua_error", "lua_next", "lua_concat",
        "lua_len", "lua_getallocf", "lua_setallocf", "lua_getupvalue", "lua_setupvalue", "lua_upvalueid", "lua_touserdata",
        "lua_tothread", "lua_topointer", "lua_tolstring", "lua_tocfunction", "lua_isyieldable", "lua_yield",
        "lua_yieldk", "lua_loadx", "lua_toboolean", "lua_setiuservalue", "lua_resetthread", "lua_closethread",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        uintptr_t padding = (uintptr_t)dlsym(RTLD_DEFAULT, names[i]) - CODE_JUMP_BYTES;
        intptr_t distance = (intptr_t)(padding - (at + SHORT_JUMP_BYTES));
        if (distance == (int8_t)distance && has_padding(padding + CODE_JUMP_BYTES) && !is_used(padding, index))
            return padding;
    }
    return 0;
}

/* Finds out what replaces the first instruction. `*far` is where the jump to us is to stand, if that is elsewhere. */
static bool plan(size_t index, uintptr_t end, uintptr_t *far)
{
    static const uint8_t landing[] = {0xf3, 0x0f, 0x1e, 0xfa};
    uintptr_t at = watched[index].start;
    if (memcmp((const void *)at, landing, sizeof landing) == 0)
        at += sizeof landing;
    struct instruction first = instruction_at((const uint8_t *)at, INSTRUCTION_LONGEST, at);
    if (first.kind != INSTRUCTION_PLAIN || first.length < SHORT_JUMP_BYTES || first.length > sizeof watched[index].before)
        return false;
    watched[index].at = at;
    watched[index].length = first.length;
    memcpy(watched[index].before, (const void *)at, first.length);
    memcpy(watched[index].after, (const void *)at, first.length);
    *far = first.length >= CODE_JUMP_BYTES ? at : padding_behind(at, end, index);
    if (*far == 0 && (*far = padding_before(at, index)) == 0)
        return false;
    if (*far != at) {
        watched[index].after[0] = SHORT_JUMP;
        watched[index].after[1] = (uint8_t)(*far - (at + SHORT_JUMP_BYTES));
    }
    return true;
}

#else

/* All instructions have the length of a jump. */
static bool plan(size_t index, uintptr_t end, uintptr_t *far)
{
    size_t distance_at;
    uintptr_t at = watched[index].start;
    (void)end;
    size_t length = code_beginning((const uint8_t *)at, CODE_JUMP_BYTES, &distance_at);
    watched[index].at = *far = at;
    watched[index].length = length;
    memcpy(watched[index].before, (const void *)at, CODE_JUMP_BYTES);
    return length != 0;
}

#endif

/* Makes the way from a function to us and back, but for the last step. */
static bool prepare(struct code_room *room, size_t index, uintptr_t code_end, void **jump, uintptr_t *far)
{
    if (watched[index].name != NULL)
        watched[index].start = (uintptr_t)dlsym(RTLD_DEFAULT, watched[index].name);
    if (watched[index].start == 0 || !plan(index, code_end, far))
        return false;
    void *original = code_room_original(room, (const void *)watched[index].at, watched[index].length, 0);
    *jump = code_room_jump(room, stub_of(index));
    memcpy(&watched[index].original, &original, sizeof original);
    return original != NULL;
}

static bool lead(size_t index, const void *jump, uintptr_t far)
{
    if (far != watched[index].at)
        return code_put_jump((void *)far, jump) && code_put((void *)watched[index].at, watched[index].after, watched[index].length);
    if (!code_put_jump((void *)far, jump))
        return false;
    memcpy(watched[index].after, (const void *)far, watched[index].length);
    return true;
}

static bool begin(void)
{
    struct code_room room;
    uintptr_t start, end, far[FUNCTIONS];
    void *jumps[FUNCTIONS], *known;
    memcpy(&known, &lua.get_stack, sizeof known);
    if (!symbols_code_of(known, &start, &end) || !code_room_open(&room, start, FUNCTIONS * STUB))
        return false;
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!prepare(&room, i, end, &jumps[i], &far[i]))
            watched[i].start = 0;
    if (!code_room_close(&room))
        return false;
    size_t count = 0;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        if (watched[i].start != 0 && !lead(i, jumps[i], far[i]))
            watched[i].start = 0;
        count += watched[i].start != 0;
    }
    return count > 0;
}

/* ---- for the bridge ---- */

static bool has_begun, is_on;

bool lua_watch(lua_on_call *of_interface, lua_allocator *allocator, lua_on_block *of_allocator)
{
    if (is_on)
        return true;
    on_call = of_interface;
    on_block = of_allocator;
    if (!has_begun)
        memcpy(&watched[ALLOCATOR].start, &allocator, sizeof allocator);
    if (!has_begun) {
        has_begun = true;
        return is_on = begin();
    }
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (watched[i].start != 0)
            is_on |= code_put((void *)watched[i].at, watched[i].after, watched[i].length);
    return is_on;
}

void lua_unwatch(void)
{
    for (size_t i = 0; is_on && lua_is_there() && i < FUNCTIONS; i++)
        if (watched[i].start != 0)
            code_put((void *)watched[i].at, watched[i].before, watched[i].length);
    is_on = false;
}

lua_allocator *lua_unwatched(lua_allocator *allocator)
{
    uintptr_t start;
    memcpy(&start, &allocator, sizeof start);
    if (start == watched[ALLOCATOR].start && watched[ALLOCATOR].original != NULL)
        memcpy(&allocator, &watched[ALLOCATOR].original, sizeof allocator);
    return allocator;
}
