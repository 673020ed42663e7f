/* See mallctl.h. */
#include "kit/mallctl.h"

/* jemalloc adds its arenas up when the epoch changes, under its own locks, which it takes and releases around each fork. */
bool mallctl_count(mallctl_function *mallctl, uint64_t bytes[OWN_FIGURES])
{
    static const char *const names[OWN_FIGURES] = {
        [OWN_ALLOCATED] = "stats.allocated", [OWN_ACTIVE] = "stats.active",     [OWN_METADATA] = "stats.metadata",
        [OWN_RESIDENT] = "stats.resident",   [OWN_RETAINED] = "stats.retained",
    };
    uint64_t epoch = 1;
    if (mallctl("epoch", NULL, NULL, &epoch, sizeof epoch) != 0)
        return false;
    for (size_t i = 0; i < OWN_FIGURES; i++) {
        size_t value, length = sizeof value;
        bool is_known = mallctl(names[i], &value, &length, NULL, 0) == 0 && length == sizeof value;
        bytes[i] = is_known ? value : OWN_UNKNOWN;
    }
    return bytes[OWN_ALLOCATED] != OWN_UNKNOWN;
}
