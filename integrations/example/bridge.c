/* The heap of Tally: its blocks, with the machine's functions, files and lines. docs/bridges.md goes through it. */
#define _GNU_SOURCE
#include "bridge.h"
#include "kit/countdown_threads.h"
#include "kit/names.h"
#include "kit/pass_on.h"
#include "kit/symbols.h"

#include <string.h>

/* What Tally says of a call. */
struct tally_call {
    const struct tally_call *caller;
    const char *function, *file;
    unsigned first_line, line;
};

static const struct tally_call *(*tally_calls)(void);

static const allocsample_hooks *hooks;
HIDDEN allocsample_heap *tally_heap; /* NULL: the bridge is off, and the entries pass all calls on */
static struct countdown_threads threads;
static struct names functions;

/* ---- functions ---- */

/* The chain is the calling thread's own: it cannot change meanwhile. */
static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    size_t count = 0;
    (void)user;
    for (const struct tally_call *call = tally_calls(); call != NULL && count < capacity; call = call->caller) {
        uint32_t function = names_function(&functions, hooks, tally_heap, call->function, call->file, call->first_line);
        frames[count++] = (allocsample_frame){.function = function, .line = call->line};
    }
    return count;
}

/* ---- blocks ---- */

PASS_ON_UNLESS(tally_heap, void *, tally_new, size_t bytes)
{
    static _Thread_local struct countdown countdown; /* zero until the thread's first block */
    void *object = tally_new_next(bytes);
    if (object == NULL)
        return NULL;
    if (UNLIKELY(countdown.limit == 0))
        countdown_join(&threads, &countdown);
    if (UNLIKELY(!countdown_take(&countdown, bytes)))
        countdown_tell(&countdown, hooks, tally_heap, (uintptr_t)object, bytes, 0);
    return object;
}

/* Told before: as soon as the block is free, another thread may have its address. */
PASS_ON_UNLESS(tally_heap, void, tally_delete, void *object)
{
    if (shim_is_marked(shim_services.block_filter, object))
        hooks->freed(tally_heap, (uintptr_t)object);
    tally_delete_next(object);
}

/* ---- start ---- */

static bool register_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_MALLOC,
        .name = "tally",
        .flags = ALLOCSAMPLE_WHOLE_CODE,
        .walk = walk,
    };
    if (hooks == NULL || !names_make(&functions))
        return false;
    allocsample_heap *registered = hooks->heap_register(&description);
    if (registered == NULL || !countdown_threads_prepare(&threads, hooks, registered))
        return false;
    uintptr_t start, end;
    void *code;
    memcpy(&code, &tally_new_next, sizeof code);
    if (symbols_code_of(code, &start, &end))
        hooks->interpreter_range(registered, start, end);
    tally_heap = registered;
    return true;
}

static void join(void)
{
    const struct symbol symbols[] = {
        {&tally_calls, "tally_calls"},
        {&tally_new_next, "tally_new"},
        {&tally_delete_next, "tally_delete"},
    };
    if (!symbols_find(symbols, sizeof symbols / sizeof symbols[0], shim_services.find_symbol))
        shim_services.decline("tally", "its library", "lacks a function");
    else if (!register_heap())
        shim_services.decline("tally", "its heap", "has no memory");
}

static void after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
}

const struct bridge bridge_tally = {
    .name = "tally",
    /* Not among the names that we stand before. */
    .runtime_symbol = "tally_calls",
    .join = join,
    .after_fork_in_child = after_fork_in_child,
};
