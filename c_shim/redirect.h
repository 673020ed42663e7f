/* Slots through which the program itself, or one object, calls functions. */
#ifndef ALLOCSAMPLE_REDIRECT_H
#define ALLOCSAMPLE_REDIRECT_H

#include "services.h"
#include "shim.h"

/* Has the program's own calls of a function (not those of libraries) come to `own`. In the constructor: nobody else loads
 * objects, or runs. */
HIDDEN void shim_redirect_in_program(const char *name, void *own);

/* See services.h. */
HIDDEN void *shim_symbol_of_object(uintptr_t start, const char *name);
HIDDEN void shim_redirect_in_object(uintptr_t start, const char *name, const void *from, void *to);
HIDDEN size_t shim_redirect_calls_of_object(uintptr_t start, const char *name, const void *from, void *to);
HIDDEN bool shim_redirect_calls(struct shim_redirection *rows, size_t count, uint64_t *left_alone);

#endif
