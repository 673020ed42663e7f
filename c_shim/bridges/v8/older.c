/* Functions that V8 may have compiled before an attach.
 *
 * V8's compilers fold allocations that follow one another into one, and V8's profiler charges all of them to one of the functions that
 * were inlined there. `run` turns that off before V8 starts. At an attach it is turned off for what V8 compiles from then on; code
 * from before stays in use for as long as V8 does not compile the function again. Until then a function is old: its machine frame is
 * known, and what was inlined into it is not.
 *
 * V8 enumerates all functions that it has compiled when its code is first watched, but not the code of on-stack replacement. So
 * every function of the enumeration is old, until V8 reports optimized code of it. */
#define _GNU_SOURCE
#include "kit/memory.h"
#include "v8.h"

#include <string.h>

/* At most half of the entries are used. */
enum { ENTRIES = 1 << 17 };
/* What V8 began to compile before it was told otherwise is reported within this time, as a rule. */
enum { IN_FLIGHT_US = 5000 };

struct v8_older_function {
    uint64_t place; /* 0: empty */
    int64_t until_us;
};

static struct v8_older_function *find(const struct v8_older *older, uint64_t place)
{
    size_t at = place >> 20 & (ENTRIES - 1);
    while (older->functions[at].place != 0 && older->functions[at].place != place)
        at = (at + 1) & (ENTRIES - 1);
    return &older->functions[at];
}

void v8_older_begin(struct v8_older *older, int64_t now_us)
{
    *older = (struct v8_older){.begin_us = now_us, .functions = memory_map(ENTRIES * sizeof *older->functions)};
    if (older->functions == NULL)
        older->others_until_us = INT64_MAX;
}

void v8_older_end(struct v8_older *older)
{
    v8_older_all_are_new(older, 0);
}

void v8_older_add(struct v8_older *older, uint64_t place)
{
    if (older->functions == NULL)
        return;
    struct v8_older_function *function = find(older, place);
    if (function->place != 0)
        return;
    if (older->count == ENTRIES / 2) {
        v8_older_all_are_new(older, INT64_MAX); /* which means never: there are too many to tell */
        return;
    }
    older->count++;
    *function = (struct v8_older_function){place, INT64_MAX};
}

void v8_older_is_compiled(struct v8_older *older, uint64_t place, int64_t now_us)
{
    if (older->functions == NULL || now_us < older->begin_us + IN_FLIGHT_US)
        return;
    struct v8_older_function *function = find(older, place);
    if (function->place != 0 && function->until_us == INT64_MAX)
        function->until_us = now_us;
}

void v8_older_all_are_new(struct v8_older *older, int64_t since_us)
{
    if (older->functions != NULL)
        munmap(older->functions, ENTRIES * sizeof *older->functions);
    older->functions = NULL;
    older->others_until_us = since_us;
}

int64_t v8_older_until_us(const struct v8_older *older, uint64_t place)
{
    if (older->functions == NULL)
        return older->others_until_us;
    const struct v8_older_function *function = find(older, place);
    return function->place != 0 ? function->until_us : older->others_until_us;
}
