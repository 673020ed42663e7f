/* See tcmalloc.h. */
#include "kit/tcmalloc.h"

#include <string.h>

/* In bytes, or OWN_UNKNOWN. */
struct figures {
    uint64_t allocated;
    uint64_t heap;       /* all pages of the page heap, those that were given back included */
    uint64_t resident;   /* what it has from the kernel and has not given back, with its own data */
    uint64_t free_pages; /* kept */
    uint64_t given_back;
};

/* Free blocks in its caches lie in pages with blocks, and free pages do not. */
static bool fill_in(const struct figures *of, uint64_t bytes[OWN_FIGURES])
{
    for (size_t i = 0; i < OWN_FIGURES; i++)
        bytes[i] = OWN_UNKNOWN;
    bytes[OWN_ALLOCATED] = of->allocated;
    bytes[OWN_RESIDENT] = of->resident;
    bytes[OWN_RETAINED] = of->given_back;
    if (of->heap != OWN_UNKNOWN && of->resident != OWN_UNKNOWN && of->free_pages != OWN_UNKNOWN &&
        of->given_back != OWN_UNKNOWN) {
        /* Other threads go on between the calls. */
        uint64_t unused = of->free_pages + of->given_back, kept = of->heap - of->given_back;
        bytes[OWN_ACTIVE] = unused <= of->heap ? of->heap - unused : OWN_UNKNOWN;
        bytes[OWN_METADATA] = of->given_back <= of->heap && kept <= of->resident ? of->resident - kept : OWN_UNKNOWN;
    }
    return of->allocated != OWN_UNKNOWN;
}

static uint64_t of_gperftools(gperftools_get_property *get_property, const char *name)
{
    size_t value;
    return get_property(name, &value) != 0 ? value : OWN_UNKNOWN;
}

bool gperftools_count(gperftools_get_property *get_property, uint64_t bytes[OWN_FIGURES])
{
    const struct figures figures = {
        .allocated = of_gperftools(get_property, "generic.current_allocated_bytes"),
        .heap = of_gperftools(get_property, "generic.heap_size"),
        .resident = of_gperftools(get_property, "generic.total_physical_bytes"),
        .free_pages = of_gperftools(get_property, "tcmalloc.pageheap_free_bytes"),
        .given_back = of_gperftools(get_property, "tcmalloc.pageheap_unmapped_bytes"),
    };
    return fill_in(&figures, bytes);
}

static uint64_t of_google(google_get_property *get_property, const char *name)
{
    size_t value;
    return get_property(name, strlen(name), &value) ? value : OWN_UNKNOWN;
}

/* Its heap size leaves out what was given back. */
bool google_count(google_get_property *get_property, uint64_t bytes[OWN_FIGURES])
{
    struct figures figures = {
        .allocated = of_google(get_property, "generic.current_allocated_bytes"),
        .heap = of_google(get_property, "generic.heap_size"),
        .resident = of_google(get_property, "generic.physical_memory_used"),
        .free_pages = of_google(get_property, "tcmalloc.pageheap_free_bytes"),
        .given_back = of_google(get_property, "tcmalloc.pageheap_unmapped_bytes"),
    };
    if (figures.heap != OWN_UNKNOWN && figures.given_back != OWN_UNKNOWN)
        figures.heap += figures.given_back;
    return fill_in(&figures, bytes);
}
