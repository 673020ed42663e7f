/* A jemalloc's own counts, by its public function `mallctl`. It takes locks, so it is called as asking.h says. */
#ifndef ALLOCSAMPLE_BRIDGES_MALLCTL_H
#define ALLOCSAMPLE_BRIDGES_MALLCTL_H

#include "bridge.h"

typedef int mallctl_function(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes);

/* Fills in the figures. False: this build has no statistics. */
HIDDEN bool mallctl_count(mallctl_function *mallctl, uint64_t bytes[OWN_FIGURES]);

#endif
