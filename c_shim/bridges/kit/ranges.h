/* For bridges that search files: ranges of addresses in order. */
#ifndef ALLOCSAMPLE_BRIDGES_RANGES_H
#define ALLOCSAMPLE_BRIDGES_RANGES_H

#include "services.h"

/* The longest item. */
#define RANGE_BYTES 64

/* Sorts `count` items by the address (uintptr_t) that each of them begins with. `item_bytes` is at most RANGE_BYTES. libc's qsort
 * may allocate; this does not. */
HIDDEN void ranges_sort(void *items, size_t count, size_t item_bytes);

#endif
