/* gperftools' tcmalloc behind malloc: its blocks are sampled as malloc's, and it is asked only for what it counts itself. One inside
 * the program is up to the bridge `entries`. */
#include "bridge.h"

#include "kit/asking.h"
#include "kit/symbols.h"
#include "kit/tcmalloc.h"

static gperftools_get_property *get_property;

static struct bridge_own counted;
static bool is_counted;

static void count_it(void)
{
    is_counted = gperftools_count(get_property, counted.bytes);
}

static size_t count(struct bridge_own *own, size_t room)
{
    if (get_property == NULL || room == 0 || !asking_run(count_it) || !is_counted)
        return 0;
    *own = counted;
    return 1;
}

/* One that is loaded, but not what malloc leads to, may be in any state. */
static void join(void)
{
    const struct symbol symbol = {&get_property, GPERFTOOLS_GET_PROPERTY};
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
