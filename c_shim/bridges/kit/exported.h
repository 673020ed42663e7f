/* For all bridges: functions that a loaded object exports by names which are known only in part, as those of languages that write types
 * into them. */
#ifndef ALLOCSAMPLE_BRIDGES_EXPORTED_H
#define ALLOCSAMPLE_BRIDGES_EXPORTED_H

#include "bridge.h"

typedef bool exported_rule(const char *name);

/* How many functions of such names the object exports that is mapped from `start` on. `name` is that of one of them, where the object
 * has it. The object is loaded completely, and stays so. Takes no lock. */
HIDDEN size_t exported_functions(uintptr_t start, exported_rule *is_wanted, const char **name);

#endif
