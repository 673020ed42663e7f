/* LuaJIT's functions.
 *
 * In its interpreter, and in functions of C, a coroutine's own record says where its newest frame is, and Lua's debug interface works.
 * Compiled code leaves that record as it was, and the global state has the frame in which the compiled code was entered: it has no
 * others, since what it has inlined has no frame. Then that frame is put into the record for the time of the walk, as LuaJIT does it
 * itself before it collects in compiled code. The line in it is not known.
 *
 * No header tells where these fields are. So an interpreter of our own runs a loop that gets compiled, and its allocator looks which
 * word of the global state is NULL until then, and from then on always a place in the coroutine's stack. If there is not exactly one,
 * LuaJIT has no functions. Records of coroutines have two layouts, for pointers of 64 bits and of 32; the trial decides.
 *
 * The coroutine that runs has frames on the native stack of its thread, which its record refers to: a stale pointer to a coroutine is
 * told by that. All that may be gone is copied by the kernel. */
#define _GNU_SOURCE
#include "lua.h"
#include "kit/foreign.h"

#include <string.h>

enum { GLOBAL_BYTES = 1024, COROUTINES = 32, TAG_THREAD = -7, KIND_THREAD = 6, KIND_FUNCTION = 8 };
/* Whether a block is one of an interpreter that is compiled is not known: so many of each must be seen. */
enum { LEAST_INTERPRETED = 20, LEAST_COMPILED = 100 };

/* Offsets in the record of a coroutine, and in a function of C. */
struct record {
    size_t pointer_bytes;
    size_t kind, global, base, top, limit, stack, native;
    size_t function_kind, captured_count, captured;
    int function_slot; /* from the base to the function that runs, in slots */
};
static const struct record records[] = {
    {8, 9, 16, 32, 40, 48, 56, 80, 9, 11, 48, -2},
    {4, 5, 8, 16, 24, 32, 36, 48, 5, 7, 32, -1},
};
enum { RECORD_BYTES = 96, FUNCTION_BYTES = 64, SLOT_BYTES = 8 };

static struct {
    const struct record *record; /* NULL: not known */
    /* Offsets in the global state. */
    size_t allocator, current, compiled_base;
    size_t main_before; /* the main thread is so many bytes before it */
} jit;

static uintptr_t pointer_of(const void *at)
{
    uint32_t small;
    uintptr_t large;
    if (jit.record->pointer_bytes == sizeof large) {
        memcpy(&large, at, sizeof large);
        return large;
    }
    memcpy(&small, at, sizeof small);
    return small;
}

static uintptr_t pointer_at(uintptr_t at)
{
    return pointer_of((const void *)at);
}

static uintptr_t word_at(uintptr_t at)
{
    uintptr_t word;
    memcpy(&word, (const void *)at, sizeof word);
    return word;
}

/* ---- the trial ---- */

static struct trial {
    lua_allocator *next;
    void *next_context;
    uintptr_t global, coroutine;
    uintptr_t outer; /* an address of the native stack below it */
    bool is_running, is_wrong;
    struct {
        uint32_t none, inside;
        bool is_other;
    } words[GLOBAL_BYTES / sizeof(uint32_t)];
} trial;

/* What each word is while a block is allocated. */
static void look(void)
{
    const struct record *record = jit.record;
    uintptr_t here = (uintptr_t)&here;
    uintptr_t stack = pointer_at(trial.coroutine + record->stack), limit = pointer_at(trial.coroutine + record->limit);
    uintptr_t native = word_at(trial.coroutine + record->native) & ~(uintptr_t)3;
    trial.is_wrong |= stack == 0 || stack >= limit || native < here || native > trial.outer;
    for (size_t i = 0; i < GLOBAL_BYTES / record->pointer_bytes; i++) {
        uintptr_t word = pointer_at(trial.global + i * record->pointer_bytes);
        if (word == 0)
            trial.words[i].none++;
        else if (word > stack && word < limit && word % SLOT_BYTES == 0)
            trial.words[i].inside++;
        else
            trial.words[i].is_other = true;
    }
}

static void *trial_block(void *context, void *block, size_t old_size, size_t size)
{
    if (trial.is_running && size != 0)
        look();
    (void)context;
    return trial.next(trial.next_context, block, old_size, size);
}

/* Where the allocator and its context are in the global state; false: they are not, or twice. */
static bool find_allocator(uintptr_t global, lua_allocator *allocator, const void *context)
{
    char bytes[GLOBAL_BYTES];
    size_t found = 0;
    if (!foreign_copy(global, bytes, sizeof bytes))
        return false;
    for (size_t i = 0; i + 2 * sizeof(void *) <= sizeof bytes; i += sizeof(void *)) {
        if (memcmp(bytes + i, &allocator, sizeof allocator) != 0 || memcmp(bytes + i + sizeof(void *), &context, sizeof context) != 0)
            continue;
        jit.allocator = i;
        found++;
    }
    return found == 1;
}

/* Finds out which record the coroutine has, by the values that are pushed to its stack. */
static bool find_record(lua_State *thread)
{
    void *context;
    lua_allocator *allocator = lua.get_allocator(thread, &context);
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        uintptr_t at = (uintptr_t)thread;
        jit.record = &records[i];
        uintptr_t global = pointer_at(at + records[i].global);
        if (!find_allocator(global, allocator, context))
            continue;
        uintptr_t base = word_at(at + records[i].base), top = word_at(at + records[i].top);
        lua.push_boolean(thread, 1);
        bool is_right = word_at(at + records[i].top) == top + SLOT_BYTES && word_at(at + records[i].base) == base &&
                        (top - base) / SLOT_BYTES + 1 == (uintptr_t)lua.get_top(thread) &&
                        ((const uint8_t *)thread)[records[i].kind] == KIND_THREAD;
        lua.set_top(thread, -2);
        jit.main_before = global - at;
        trial.global = global;
        return is_right;
    }
    return false;
}

static bool run(lua_State *thread, int arguments)
{
    trial.coroutine = (uintptr_t)thread;
    return lua.resume(thread, arguments) == LUA_IS_OK;
}

/* The only word that is what it must be; 0: there is none, or another one. */
static size_t find_compiled_base(void)
{
    size_t found = 0, count = 0;
    for (size_t i = 0; i < GLOBAL_BYTES / jit.record->pointer_bytes; i++) {
        bool is_it = !trial.words[i].is_other && trial.words[i].none >= LEAST_INTERPRETED && trial.words[i].inside >= LEAST_COMPILED;
        found = is_it ? i : found;
        count += is_it;
    }
    return count == 1 && found > 0 ? found * jit.record->pointer_bytes : 0;
}

/* With the allocator of the trial. */
static bool try_code(lua_State *own)
{
    static const char code[] = "local kept = {} for i = 1, 400 do kept[i] = {i} end return kept";
    lua_State *opener = lua.new_thread(own), *runner = lua.new_thread(own);
    lua.push_function(opener, lua.open_jit, 0);
    lua.push_string(opener, "jit");
    if (!run(opener, 1) || lua.load(runner, code, sizeof code - 1, "=trial") != LUA_IS_OK)
        return false;
    trial.is_running = true;
    bool has_run = run(runner, 0);
    trial.is_running = false;
    jit.compiled_base = has_run && !trial.is_wrong ? find_compiled_base() : 0;
    jit.current = jit.compiled_base - jit.record->pointer_bytes;
    return jit.compiled_base != 0 && pointer_at(trial.global + jit.current) == (uintptr_t)runner &&
           pointer_at(trial.global + jit.compiled_base) == 0 && trial.words[jit.current / jit.record->pointer_bytes].none == 0;
}

bool luajit_prepare(void)
{
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    uintptr_t outer = (uintptr_t)&outer;
    lua_State *own = lua.new_state();
    bool is_known = own != NULL && find_record(own);
    if (is_known) {
        trial.outer = outer;
        trial.next = lua.get_allocator(own, &trial.next_context);
        lua.set_allocator(own, trial_block, &trial);
        is_known = try_code(own);
        /* Otherwise its memory would stay. */
        lua.set_allocator(own, trial.next, trial.next_context);
    }
    if (own != NULL)
        lua.close(own);
    if (!is_known)
        jit.record = NULL;
    shim_quiet_end(before);
    return is_known;
}

lua_allocator *luajit_allocator(void)
{
    return jit.record == NULL ? NULL : trial.next;
}

/* Whether it is one with this allocator. */
static bool is_global(uintptr_t global, lua_allocator *allocator, const void *context)
{
    char found[2 * sizeof(void *)];
    return foreign_copy(global + jit.allocator, found, sizeof found) && memcmp(found, &allocator, sizeof allocator) == 0 &&
           memcmp(found + sizeof allocator, &context, sizeof context) == 0;
}

uintptr_t luajit_global_of(lua_State *thread)
{
    void *context;
    lua_allocator *allocator = lua.get_allocator(thread, &context);
    uintptr_t global = jit.record == NULL ? 0 : pointer_at((uintptr_t)thread + jit.record->global);
    return global != 0 && is_global(global, allocator, context) ? global : 0;
}

/* ---- coroutines ---- */

/* Whether a record of a coroutine of this interpreter is there. */
static bool copy_record(uintptr_t global, uintptr_t thread, uint8_t record[RECORD_BYTES])
{
    return thread % SLOT_BYTES == 0 && foreign_copy(thread, record, RECORD_BYTES) && record[jit.record->kind] == KIND_THREAD &&
           pointer_of(record + jit.record->global) == global;
}

lua_State *luajit_main_of(uintptr_t global)
{
    uint8_t record[RECORD_BYTES];
    uintptr_t thread = global - jit.main_before;
    return global != 0 && copy_record(global, thread, record) ? (lua_State *)thread : NULL;
}

lua_State *luajit_main_by_allocator(uintptr_t context)
{
    uintptr_t global = context + trial.global - (uintptr_t)trial.next_context;
    return is_global(global, trial.next, (const void *)context) ? luajit_main_of(global) : NULL;
}

/* Whether it is a coroutine that has frames on the native stack of the calling thread. */
static bool is_active(uintptr_t global, uintptr_t thread)
{
    uint8_t record[RECORD_BYTES];
    uintptr_t start, end, native;
    if (thread == 0 || !copy_record(global, thread, record))
        return false;
    memcpy(&native, record + jit.record->native, sizeof native);
    shim_services.own_stack(&start, &end);
    return native >= start && native < end;
}

/* The coroutine that a value is, if it is active. */
static uintptr_t active_of(uintptr_t global, uint64_t value)
{
    bool is_wide = jit.record->pointer_bytes == sizeof(uint64_t);
    int32_t tag = is_wide ? (int32_t)((int64_t)value >> 47) : (int32_t)(value >> 32);
    uintptr_t thread = value & ((UINT64_C(1) << (is_wide ? 47 : 32)) - 1);
    return tag == TAG_THREAD && is_active(global, thread) ? thread : 0;
}

/* What the function that a coroutine runs has captured first, as the functions of coroutine.wrap have their coroutine; 0: nothing. */
static uint64_t captured_by(uintptr_t base)
{
    bool is_wide = jit.record->pointer_bytes == sizeof(uint64_t);
    uint8_t function[FUNCTION_BYTES];
    uint64_t slot, value;
    memcpy(&slot, (const void *)(base + (uintptr_t)(jit.record->function_slot * SLOT_BYTES)), sizeof slot);
    uintptr_t at = slot & ((UINT64_C(1) << (is_wide ? 47 : 32)) - 1);
    if (!foreign_copy(at, function, sizeof function) || function[jit.record->function_kind] != KIND_FUNCTION ||
        function[jit.record->captured_count] == 0)
        return 0;
    memcpy(&value, function + jit.record->captured, sizeof value);
    return value;
}

/* The coroutine that an active one has resumed; 0: none that is known. */
static uintptr_t resumed_by(uintptr_t global, uintptr_t thread)
{
    uintptr_t base = word_at(thread + jit.record->base);
    uintptr_t resumed = 0;
    if (word_at(thread + jit.record->top) > base)
        resumed = active_of(global, word_at(base));
    return resumed != 0 ? resumed : active_of(global, captured_by(base));
}

/* Those that have resumed each other, from the main thread on to the one that runs, which is there alone if others are missing. */
static size_t find_active(const struct lua_interpreter *of, uintptr_t running, uintptr_t threads[COROUTINES])
{
    uintptr_t main = (uintptr_t)of->main, thread = main;
    size_t depth = 0;
    for (; thread != 0 && depth < COROUTINES; thread = resumed_by(of->global, thread)) {
        threads[depth++] = thread;
        if (thread == running)
            return depth;
    }
    if (running == main)
        return 0;
    if (running != 0) {
        threads[0] = running;
        return 1;
    }
    return depth;
}

/* ---- walks ---- */

static _Atomic(bool) is_noted;

void luajit_note_again(void)
{
    atomic_store_explicit(&is_noted, false, memory_order_relaxed);
}

/* Reports say where compiled code has run. */
static void note_compiled(void)
{
    if (atomic_exchange_explicit(&is_noted, true, memory_order_relaxed))
        return;
    uint64_t now = lua_hooks->now_ns();
    lua_hooks->marker(lua_heap,
                      "note: LuaJIT compiles code, and what that allocates is charged to the function in which the compiled code begins: `allocsample run --inlining off` keeps functions apart",
                      now, now);
}

static size_t walk_compiled(uintptr_t thread, uintptr_t base, allocsample_frame *frames, size_t capacity)
{
    uintptr_t *place = (uintptr_t *)(thread + jit.record->base), before = *place;
    *place = base;
    size_t count = lua_walk_thread((lua_State *)thread, false, frames, capacity);
    *place = before;
    note_compiled();
    return count;
}

size_t luajit_walk(const struct lua_interpreter *of, allocsample_frame *frames, size_t capacity)
{
    uintptr_t threads[COROUTINES];
    if (of->global == 0 || of->main == NULL)
        return 0;
    uintptr_t running = pointer_at(of->global + jit.current), base = pointer_at(of->global + jit.compiled_base);
    /* What ran last may be gone. */
    if (running != (uintptr_t)of->main && !is_active(of->global, running))
        running = 0;
    if (base != 0 && (running == 0 || base <= pointer_at(running + jit.record->stack) ||
                      base >= pointer_at(running + jit.record->limit)))
        return 0;
    size_t depth = find_active(of, running, threads), count = 0;
    while (depth > 0) {
        uintptr_t thread = threads[--depth];
        count += thread == running && base != 0
                     ? walk_compiled(thread, base, frames + count, capacity - count)
                     : lua_walk_thread((lua_State *)thread, true, frames + count, capacity - count);
    }
    return count;
}
