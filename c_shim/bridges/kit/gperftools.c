/* See gperftools.h. */
#include "kit/gperftools.h"

static uint64_t property(gperftools_get_property *get_property, const char *name)
{
    size_t value;
    return get_property(name, &value) != 0 ? value : OWN_UNKNOWN;
}

/* `total_physical_bytes` is what it has from the kernel and has not given back, with its own data; `heap_size` leaves the latter
 * out. Free blocks in its caches lie in pages with blocks, and free pages do not. */
bool gperftools_count(gperftools_get_property *get_property, uint64_t bytes[OWN_FIGURES])
{
    uint64_t heap = property(get_property, "generic.heap_size");
    uint64_t resident = property(get_property, "generic.total_physical_bytes");
    uint64_t free_pages = property(get_property, "tcmalloc.pageheap_free_bytes");
    uint64_t given_back = property(get_property, "tcmalloc.pageheap_unmapped_bytes");
    for (size_t i = 0; i < OWN_FIGURES; i++)
        bytes[i] = OWN_UNKNOWN;
    bytes[OWN_ALLOCATED] = property(get_property, "generic.current_allocated_bytes");
    bytes[OWN_RESIDENT] = resident;
    bytes[OWN_RETAINED] = given_back;
    if (heap != OWN_UNKNOWN && resident != OWN_UNKNOWN && free_pages != OWN_UNKNOWN && given_back != OWN_UNKNOWN) {
        /* Other threads go on between the calls. */
        uint64_t unused = free_pages + given_back, kept = heap - given_back;
        bytes[OWN_ACTIVE] = unused <= heap ? heap - unused : OWN_UNKNOWN;
        bytes[OWN_METADATA] = given_back <= heap && kept <= resident ? resident - kept : OWN_UNKNOWN;
    }
    return bytes[OWN_ALLOCATED] != OWN_UNKNOWN;
}
