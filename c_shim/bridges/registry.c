/* See registry.h. */
#define _GNU_SOURCE
#include "registry.h"
#include "bridge.h"

#include <dlfcn.h>

static const struct bridge *const bridges[] = {
#define BRIDGE(NAME) &bridge_##NAME,
#include "list.def"
#undef BRIDGE
};
#define BRIDGES (sizeof bridges / sizeof bridges[0])

static bool is_in_global_scope(const char *symbol)
{
    return dlsym(RTLD_DEFAULT, symbol) != NULL;
}

/* Most processes are none of these runtimes: each bridge costs them one look-up. */
void bridges_join(bool on_request)
{
    for (size_t i = 0; i < BRIDGES; i++) {
        const struct bridge *bridge = bridges[i];
        bool is_wanted = on_request || !bridge->is_on_request;
        if (is_wanted && (bridge->runtime_symbol == NULL || is_in_global_scope(bridge->runtime_symbol)))
            bridge->join();
    }
}

void bridges_attach(void)
{
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->attach != NULL)
            bridges[i]->attach();
}

void bridges_detach(void)
{
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->detach != NULL)
            bridges[i]->detach();
}

void bridges_after_fork_in_child(void)
{
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->after_fork_in_child != NULL)
            bridges[i]->after_fork_in_child();
}

bool bridges_have_scanning_collector(void)
{
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->scanning_collector_symbol != NULL && is_in_global_scope(bridges[i]->scanning_collector_symbol))
            return true;
    return false;
}

/* ---- those that declined ---- */

#define MOST_DECLINED 8

static struct bridge_declined declined[MOST_DECLINED];
static size_t declined_count;

/* Runs before `main` on the only thread, so readers need no synchronisation. */
void bridges_decline(const char *heap, const char *what, const char *why)
{
    if (declined_count < MOST_DECLINED)
        declined[declined_count++] = (struct bridge_declined){heap, what, why};
}

bool bridges_declined(size_t index, struct bridge_declined *found)
{
    if (index >= declined_count)
        return false;
    *found = declined[index];
    return true;
}
