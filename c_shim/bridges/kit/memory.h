/* Memory of bridges, which never comes from the program's allocator. */
#ifndef ALLOCSAMPLE_BRIDGES_MEMORY_H
#define ALLOCSAMPLE_BRIDGES_MEMORY_H

#include <stddef.h>
#include <sys/mman.h>

#include "services.h"

/* Zeroed pages of their own, which become resident as they are touched; NULL if there are none. Given back, if at all, with
 * munmap. */
static inline void *memory_map(size_t bytes)
{
    return shim_services.map_own(bytes);
}

#endif
