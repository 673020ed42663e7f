/* Address space that the program has reserved without rights, and the pages of it that it has made usable since. */
#ifndef ALLOCSAMPLE_RESERVED_H
#define ALLOCSAMPLE_RESERVED_H

#include "shim.h"

/* Receives a run of pages that a call has changed. */
typedef void shim_on_run(void *context, uintptr_t start, size_t bytes);

/* mmap has made a mapping. One without rights, private and of no file, is a reservation; any other takes the place of what was
 * reserved there. */
HIDDEN void shim_reserved_map(uintptr_t start, size_t bytes, int protection, int flags);
/* All reservations are forgotten: an agent that was detached has not seen what became of them. */
HIDDEN void shim_reserved_forget(void);
/* The range is not mapped any more. */
HIDDEN void shim_reserved_unmap(uintptr_t start, size_t bytes);
/* mprotect has given rights to a range, or has taken them all. Reports each run of reserved pages that changed by it: from
 * unusable to writable, or from usable to inaccessible. */
HIDDEN void shim_reserved_commit(uintptr_t start, size_t bytes, shim_on_run *on_run, void *context);
HIDDEN void shim_reserved_uncommit(uintptr_t start, size_t bytes, shim_on_run *on_run, void *context);

#endif
