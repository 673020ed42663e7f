/* See ranges.h. */
#include "kit/ranges.h"

#include <string.h>

static uintptr_t start_of(const char *item)
{
    uintptr_t start;
    memcpy(&start, item, sizeof start);
    return start;
}

/* Shell's sort. */
void ranges_sort(void *items, size_t count, size_t item_bytes)
{
    char *first = items;
    char moved[RANGE_BYTES];
    for (size_t gap = count / 2; gap > 0; gap /= 2) {
        for (size_t i = gap; i < count; i++) {
            memcpy(moved, first + i * item_bytes, item_bytes);
            size_t j = i;
            for (; j >= gap && start_of(first + (j - gap) * item_bytes) > start_of(moved); j -= gap)
                memcpy(first + j * item_bytes, first + (j - gap) * item_bytes, item_bytes);
            memcpy(first + j * item_bytes, moved, item_bytes);
        }
    }
}
