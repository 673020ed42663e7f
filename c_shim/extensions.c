/* Functions that only some allocators have, for the same blocks as malloc: jemalloc's mallocx and its kin, which BIND and Varnish call.
 *
 * Programs test for jemalloc by weak references to these functions, so we must not export them. Instead their slots are changed, as in
 * a process that is attached to, where the object that malloc leads to defines them.
 *
 * xallocx, which changes a block in place, is not among them: in the profile its block keeps the size that it had. */
#define _GNU_SOURCE
#include "attach.h"

/* ---- mallocx ---- */

SHIM_DUE_ENTRY(2, void *, mallocx, size_t size, int flags)
{
    shim_take_back(size);
    return shim_after_alloc(NEXT(mallocx)(size, flags), size, false, SHIM_CALLER());
}

static void *own_mallocx(size_t size, int flags)
{
    if (shim_charge(size))
        return mallocx_due(size, flags);
    return NEXT(mallocx)(size, flags);
}

/* ---- rallocx ---- */

static void *rallocx_watched(void *block, size_t size, int flags, const struct shim_caller *caller)
{
    uint64_t taken = shim_before_realloc(block, caller);
    return shim_after_realloc(block, taken, NEXT(rallocx)(block, size, flags), size, caller);
}

SHIM_DUE_ENTRY(3, void *, rallocx, void *block, size_t size, int flags)
{
    shim_take_back(size);
    return rallocx_watched(block, size, flags, SHIM_CALLER());
}

SHIM_DUE_ENTRY(3, void *, rallocx_marked, void *block, size_t size, int flags)
{
    return rallocx_watched(block, size, flags, SHIM_CALLER());
}

static void *own_rallocx(void *block, size_t size, int flags)
{
    if (shim_may_be_sampled(block))
        return rallocx_marked_due(block, size, flags);
    if (shim_charge(size))
        return rallocx_due(block, size, flags);
    return NEXT(rallocx)(block, size, flags);
}

/* ---- dallocx, sdallocx ---- */

SHIM_DUE_ENTRY(2, void, dallocx, void *block, int flags)
{
    if (shim_before_free(block, SHIM_CALLER()))
        NEXT(dallocx)(block, flags);
}

static void own_dallocx(void *block, int flags)
{
    if (shim_may_be_sampled(block)) {
        dallocx_due(block, flags);
        return;
    }
    NEXT(dallocx)(block, flags);
}

SHIM_DUE_ENTRY(3, void, sdallocx, void *block, size_t size, int flags)
{
    if (shim_before_free(block, SHIM_CALLER()))
        NEXT(sdallocx)(block, size, flags);
}

static void own_sdallocx(void *block, size_t size, int flags)
{
    if (shim_may_be_sampled(block)) {
        sdallocx_due(block, size, flags);
        return;
    }
    NEXT(sdallocx)(block, size, flags);
}

/* ---- their places ---- */

void shim_enable_extensions(void)
{
#define EXTENSION(NAME) shim_functions[SHIM_ROW_##NAME].own = (void *)(uintptr_t)own_##NAME;
#define INTERPOSED(GROUP, NAME)
#include "interposed.def"
}

static bool is_of_libc(const void *function)
{
    return shim_same_object(function, (const void *)(uintptr_t)getenv);
}

void shim_redirect_extensions(void)
{
    const void *next_malloc = shim_next_malloc_address();
    bool is_any = false;
    if (is_of_libc(next_malloc))
        return;
    for (struct shim_function *function = shim_functions; function < shim_functions + SHIM_ROWS; function++) {
        if (function->group != SHIM_EXTENSION)
            continue;
        void *found = shim_find_symbol(function->name);
        if (found != NULL && shim_same_object(found, next_malloc)) {
            function->next = found;
            is_any = true;
        }
    }
    if (!is_any)
        return;
    shim_enable_extensions();
    /* Objects that are loaded later call them, too. */
    shim_enable_look_ups();
    shim_next_function(&shim_functions[SHIM_ROW_dlsym]);
    struct shim_pass pass;
    shim_redirect(&pass);
}
