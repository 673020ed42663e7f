/* The services of the core for bridges: see services.h. */
#include "services.h"

#include "attach.h"
#include "bridges/registry.h"
#include "confinement.h"
#include "interposed.h"
#include "redirect.h"

static bool is_on(void)
{
    return shim_agent() != NULL;
}

static bool is_unfiltered(void)
{
    return !shim_is_filtered();
}

static size_t copy_foreign(void *to, size_t room, const struct iovec *from, size_t pieces)
{
    const struct shim_slow_path *agent = shim_agent();
    return agent == NULL ? 0 : agent->copy_foreign(to, room, from, pieces);
}

static void own_stack(uintptr_t *start, uintptr_t *end)
{
    const struct shim_slow_path *agent = shim_agent();
    *start = *end = 0;
    if (agent != NULL)
        agent->own_stack(&shim_thread, start, end);
}

static void *malloc_uncounted(size_t size)
{
    return shim_next.malloc(size);
}

static void *calloc_uncounted(size_t count, size_t size)
{
    return shim_next.calloc(count, size);
}

static const struct shim_caller *sampled_caller(void)
{
    return shim_sampled_caller;
}

static void define_malloc_type(uint32_t type, const char *name)
{
    const struct shim_slow_path *agent = shim_agent();
    if (agent != NULL)
        agent->define_type(type, name);
}

static struct shim_counters *counters(void)
{
    return &shim_thread.counters;
}

const struct shim_services shim_services = {
    .version = SHIM_SERVICES_VERSION,
    .size = sizeof shim_services,
    .is_on = is_on,
    .decline = bridges_decline,
    .is_unfiltered = is_unfiltered,
    .is_asked_for = bridges_are_asked_for,
    .copy_foreign = copy_foreign,
    .own_stack = own_stack,
    .malloc_uncounted = malloc_uncounted,
    .calloc_uncounted = calloc_uncounted,
    .block_filter = shim_block_filter,
    .is_sampled = shim_is_sampled,
    .sampled_caller = sampled_caller,
    .set_on_sampled = shim_set_on_sampled,
    .set_on_sampled_end = shim_set_on_sampled_end,
    .define_malloc_type = define_malloc_type,
    .counters = counters,
    .find_symbol = shim_find_symbol,
    .find_object = shim_find_object,
    .same_object = shim_same_object,
    .redirect_in_program = shim_redirect_in_program,
    .find_definitions = shim_find_definitions,
    .redirect_calls = shim_redirect_calls,
    .symbol_of_object = shim_symbol_of_object,
    .redirect_in_object = shim_redirect_in_object,
    .map_own = shim_map_own,
    .redirect_calls_of_object = shim_redirect_calls_of_object,
};
