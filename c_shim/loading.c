/* Redirects the calls of objects that are loaded later, where they would bypass the agent.
 *
 * RTLD_DEEPBIND makes the loader search an object and its dependencies before the program's global scope. The object's calls
 * of malloc then go to libc, although the agent comes first in the global scope. The same holds for the dependencies loaded
 * with it. Their slots are changed, as after an attach, once dlopen returns; their constructors have already run by then.
 * After an attach, and for extensions.c, the slots of all objects are changed.
 *
 * An object with a malloc of its own, or with a dependency that has one, keeps it: a slot is changed only if it holds the next
 * function. Blocks may be exchanged at any time: we hand out the next allocator's. */
#define _GNU_SOURCE
#include "attach.h"
#include "confinement.h"
#include "dynamic.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* ---- searches that depend on the caller ---- */

struct search {
    uintptr_t caller;
    size_t index;
    bool is_caller_known;
    bool is_callers_own;
};

/* Finds objects that add directories to the search: RPATH applies to everything that the object loads, directly or not; RUNPATH
 * to the object itself. The program's RPATH is searched for any caller. */
static int look_for_directories(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    struct search *search = argument;
    bool is_caller = shim_holds(info, search->caller);
    search->is_caller_known |= is_caller;
    search->is_callers_own |= search->index > 0 && shim_dynamic_value(info, DT_RPATH) != 0;
    search->is_callers_own |= is_caller && shim_dynamic_value(info, DT_RUNPATH) != 0;
    search->is_callers_own |= is_caller && (shim_dynamic_value(info, DT_FLAGS_1) & DF_1_NODEFLIB) != 0;
    search->index++;
    return 0;
}

/* dlopen depends on its caller: the caller's object says where to search for a bare name, and `$ORIGIN` is its directory. */
static bool needs_caller(const char *path, const void *caller)
{
    if (path == NULL || strchr(path, '$') != NULL)
        return true;
    if (strchr(path, '/') != NULL)
        return false;
    struct search search = {.caller = (uintptr_t)caller};
    dl_iterate_phdr(look_for_directories, &search);
    return !search.is_caller_known || search.is_callers_own;
}

/* ---- dlopen and dlsym ---- */

/* A system call filter may kill the process for the calls that a pass makes. musl has no such mode. */
static bool binds_past_us(int mode)
{
    return (mode & RTLD_DEEPBIND) != 0 && !shim_is_late() && shim_is_glibc() && shim_agent() != NULL && !shim_is_filtered();
}

static void *open_and_redirect(const char *path, int mode, bool is_past_us)
{
    struct shim_loaded before;
    shim_count_loaded(&before);
    void *handle = NEXT(dlopen)(path, mode);
    int saved_errno = errno;
    if (is_past_us)
        shim_prepare_early();
    if (!shim_is_filtered())
        shim_redirect_loaded_since(&before);
    errno = saved_errno;
    return handle;
}

/* A program that opens a library usually looks up its symbols next. */
static void redirect_at_next_look_up(void)
{
    struct shim_pass pass;
    int saved_errno = errno;
    shim_prepare_early();
    if (!shim_is_redirecting()) {
        shim_enable_look_ups();
        shim_next_function(&shim_functions[SHIM_ROW_dlsym]);
        shim_redirect(&pass);
    }
    errno = saved_errno;
}

/* Jumps to the next dlopen, which keeps the caller's return address in place. If objects are to be redirected, and the result does
 * not depend on the caller, it calls the next one instead, to make a pass after it. */
EXPORT void *dlopen(const char *path, int mode)
{
    bool is_past_us = binds_past_us(mode);
    if (LIKELY(!is_past_us && !shim_is_redirecting()))
        return NEXT(dlopen)(path, mode);
    if (!needs_caller(path, __builtin_extract_return_addr(__builtin_return_address(0))))
        return open_and_redirect(path, mode, is_past_us);
    if (is_past_us && path != NULL)
        redirect_at_next_look_up();
    return NEXT(dlopen)(path, mode);
}

/* A jump, too: RTLD_NEXT is relative to the caller. The loader gives an object of another namespace what belongs there. Ours is
 * the program's, so any object that calls through a slot that we changed is in it too. */
static void *own_dlsym(void *handle, const char *name)
{
    if (!shim_is_filtered()) {
        int saved_errno = errno;
        shim_redirect_what_is_new();
        errno = saved_errno;
    }
    return NEXT(dlsym)(handle, name);
}

void shim_enable_look_ups(void)
{
    shim_functions[SHIM_ROW_dlsym].own = own_dlsym;
}
