/* Where a function is that we stand before under its own name. */
#ifndef ALLOCSAMPLE_BRIDGES_NEXT_FUNCTION_H
#define ALLOCSAMPLE_BRIDGES_NEXT_FUNCTION_H

#include "bridge.h"

/* The function of that name behind ours: in the order of the program's objects, among those that the caller's object is linked
 * to, or in any object. NULL: there is none, as in a namespace of its own whose caller is not in it. Takes the loader's lock. */
HIDDEN void *next_function(const char *name, const void *caller);

#endif
