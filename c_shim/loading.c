/* Redirects the calls of objects that are loaded later: after an attach, and for extensions.c. */
#define _GNU_SOURCE
#include "attach.h"
#include "confinement.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

/* dlopen looks at who calls it: it searches for a bare name where the caller's object says, and `$ORIGIN` is its directory. */
static bool needs_caller(const char *path)
{
    return path == NULL || strchr(path, '/') == NULL || strchr(path, '$') != NULL;
}

/* Reaches the next one by a jump, which leaves the caller's return address where it is, unless it need not know its caller: then it
 * is called, which gives us the moment after it. Objects that came otherwise are found at the next call of either: who opens a
 * library looks up its symbols next. */
static void *own_dlopen(const char *path, int mode)
{
    if (needs_caller(path) || shim_is_filtered())
        return NEXT(dlopen)(path, mode);
    struct shim_loaded before;
    shim_count_loaded(&before);
    void *handle = NEXT(dlopen)(path, mode);
    int saved_errno = errno;
    shim_redirect_loaded_since(&before);
    errno = saved_errno;
    return handle;
}

/* A jump, too: RTLD_NEXT is relative to the caller. The loader gives an object of another namespace what belongs there. Ours is
 * the program's, so any object that calls through a slot that we changed is in it too. */
static void *own_dlsym(void *handle, const char *name)
{
    /* A filter of system calls may kill the process for those that a pass makes. */
    if (!shim_is_filtered()) {
        int saved_errno = errno;
        shim_redirect_what_is_new();
        errno = saved_errno;
    }
    return NEXT(dlsym)(handle, name);
}

void shim_enable_look_ups(void)
{
    shim_functions[SHIM_ROW_dlopen].own = own_dlopen;
    shim_functions[SHIM_ROW_dlsym].own = own_dlsym;
}
