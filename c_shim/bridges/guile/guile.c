/* Scheme's procedures, files and lines in the stacks of what Guile 3.0 allocates: its objects, which libgc's bridge counts, and
 * malloc's blocks.
 *
 * Guile's own functions that give a stack allocate, and none may be called from within an allocator. So the stack of its virtual
 * machine is read (frames.c), with names and lines from compiled files as they are mapped (code.c, lines.c). Nothing of Guile is
 * changed or called. */
#define _GNU_SOURCE
#include "guile.h"
#include "kit/memory.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <dlfcn.h>

/* The second one is of Guile 3.0, and of no version before. */
#define RUNTIME_SYMBOL "scm_boot_guile"
#define SYMBOL_OF_3_0 "scm_values_2"

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static const struct guile *joined;
static _Atomic(bool) is_left; /* the process was detached from */

static bool make_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !guile_frames_make())
        return false;
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_TRACED,
        .name = "guile",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE | ALLOCSAMPLE_CODE_IS_NO_MODULE | ALLOCSAMPLE_WALK_IN_FREE,
        .walk = guile_frames_walk,
    };
    heap = hooks->heap_register(&description);
    return heap != NULL;
}

/* Returns why not, or NULL. */
static const char *enter(const void *boot)
{
    static struct guile guile;
    uintptr_t start, end;
    if (dlsym(RTLD_DEFAULT, SYMBOL_OF_3_0) == NULL)
        return "is of a version that is not known";
    if (!make_heap())
        return "finds no memory for its bridge";
    guile = (struct guile){hooks, heap};
    if (symbols_code_of(boot, &start, &end))
        hooks->interpreter_range(heap, start, end);
    joined = &guile;
    guile_frames_are_of(&guile);
    return NULL;
}

/* Says why not, once. */
static void try_to_enter(const void *boot)
{
    static bool is_declined;
    const char *why = is_declined ? NULL : enter(boot);
    if (why == NULL)
        return;
    is_declined = true;
    shim_services.decline("guile", "Guile", why);
}

static void join(void)
{
    try_to_enter(dlsym(RTLD_DEFAULT, RUNTIME_SYMBOL));
}

static void attach(void)
{
    void *boot = joined != NULL ? NULL : dlsym(RTLD_DEFAULT, RUNTIME_SYMBOL);
    if (boot != NULL)
        try_to_enter(boot);
    if (joined == NULL)
        return;
    resume_heap(hooks, heap);
    if (atomic_exchange(&is_left, false))
        guile_frames_are_of(joined);
}

static void detach(void)
{
    if (joined == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store(&is_left, true);
    guile_frames_are_of(NULL);
}

const struct bridge bridge_guile = {
    .name = "guile",
    .runtime_symbol = RUNTIME_SYMBOL,
    .join = join,
    .attach = attach,
    .detach = detach,
    .after_fork_in_child = guile_frames_after_fork_in_child,
};
