/* See pass_on.h. */
#define _GNU_SOURCE
#include "kit/pass_on.h"
#include "kit/next_function.h"

#include <errno.h>

void *pass_on_to(const char *name, const void *caller, void **found)
{
    int saved_errno = errno;
    void *next = shim_services.find_symbol(name);
    /* The same for all whose calls come here by the program's order. Libraries that were opened each for itself have their own. */
    if (next != NULL)
        __atomic_store_n(found, next, __ATOMIC_RELEASE);
    else
        next = next_function(name, caller);
    errno = saved_errno;
    return next;
}
