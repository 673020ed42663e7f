/* Which symbols no loaded object defines, for the core. A look-up by the loader that fails costs it some thousand instructions, and
 * most processes have none of the runtimes. */
#ifndef ALLOCSAMPLE_BRIDGES_ABSENCE_H
#define ALLOCSAMPLE_BRIDGES_ABSENCE_H

#include "services.h"

#include <stddef.h>
#include <stdint.h>

/* More symbols are not asked for at once. */
#define ABSENCE_SYMBOLS 64

/* A bit for each of the symbols, from the lowest on: 0 if no loaded object defines it, 1 if one may. NULL has 0. `count` is at most
 * ABSENCE_SYMBOLS. Takes the loader's lock. Nothing of an object is read without it: another thread may unload the object. */
HIDDEN uint64_t absence_exceptions(const char *const *symbols, size_t count);

#endif
