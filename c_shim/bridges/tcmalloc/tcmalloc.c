/* gperftools' tcmalloc behind malloc: its blocks are sampled as malloc's, and it is asked only for what it counts itself.
 *
 * `MallocExtension_GetNumericProperty` is its public C interface, the same since 2.0. It takes the locks of its page heap and of its
 * central lists one after the other, so it is called as asking.h says. */
#include "bridge.h"

#include "kit/asking.h"
#include "kit/symbols.h"

static int (*get_property)(const char *name, size_t *value);

static struct bridge_own counted;

static uint64_t property(const char *name)
{
    size_t value;
    return get_property(name, &value) != 0 ? value : OWN_UNKNOWN;
}

/* `total_physical_bytes` is what it has from the kernel and has not given back, with its own data; `heap_size` leaves the latter
 * out. Free blocks in its caches lie in pages with blocks, and free pages do not. */
static void count_all(void)
{
    uint64_t heap = property("generic.heap_size"), resident = property("generic.total_physical_bytes");
    uint64_t free_pages = property("tcmalloc.pageheap_free_bytes");
    uint64_t given_back = property("tcmalloc.pageheap_unmapped_bytes");
    for (size_t i = 0; i < OWN_FIGURES; i++)
        counted.bytes[i] = OWN_UNKNOWN;
    counted.bytes[OWN_ALLOCATED] = property("generic.current_allocated_bytes");
    counted.bytes[OWN_RESIDENT] = resident;
    counted.bytes[OWN_RETAINED] = given_back;
    if (heap == OWN_UNKNOWN || resident == OWN_UNKNOWN || free_pages == OWN_UNKNOWN || given_back == OWN_UNKNOWN)
        return;
    /* Other threads go on between the calls. */
    uint64_t unused = free_pages + given_back, kept = heap - given_back;
    counted.bytes[OWN_ACTIVE] = unused <= heap ? heap - unused : OWN_UNKNOWN;
    counted.bytes[OWN_METADATA] = given_back <= heap && kept <= resident ? resident - kept : OWN_UNKNOWN;
}

static size_t count(struct bridge_own *own, size_t room)
{
    if (get_property == NULL || room == 0 || !asking_run(count_all) || counted.bytes[OWN_ALLOCATED] == OWN_UNKNOWN)
        return 0;
    *own = counted;
    return 1;
}

/* One that is loaded, but not what malloc leads to, may be in any state. */
static void join(void)
{
    const struct symbol symbol = {&get_property, "MallocExtension_GetNumericProperty"};
    if (symbols_find(&symbol, 1, NULL) && !symbols_is_of_malloc(&get_property))
        get_property = NULL;
}

const struct bridge bridge_tcmalloc = {
    .name = "tcmalloc",
    .group = BRIDGE_EMBEDDED,
    .join = join,
    .attach = join,
    .count = count,
    .after_fork_in_child = asking_after_fork_in_child,
};
