/* A function is old from the enumeration of what V8 has compiled until V8 compiles it again, or everything. Compared with a model that
 * looks every function up in a list, on random sequences of events. */
#define _GNU_SOURCE
#include "../../c_shim/bridges/v8/older.c"
#include "check.h"
#include "bridge_parts.h"

#include <stdio.h>
#include <stdlib.h>

enum { FUNCTIONS = 200 };

/* Places that share the first entry of the table, as well as places that do not. */
static uint64_t place_of(size_t function)
{
    return (uint64_t)(function % 3) << 20 | (function + 1);
}

static void age_is_that_of_a_model(void)
{
    for (int round = 0; round < 2000; round++) {
        int64_t until_us[FUNCTIONS] = {0}, now_us = 1000 + (int64_t)below(1000);
        struct v8_older older;
        v8_older_begin(&older, now_us);
        int64_t flight_ends_us = now_us + IN_FLIGHT_US;
        bool is_over = false;
        for (int event = 0; event < 400; event++) {
            size_t function = below(FUNCTIONS);
            now_us += (int64_t)below(40);
            switch (below(event < 200 ? 2 : 3)) {
            case 0:
                v8_older_add(&older, place_of(function));
                if (!is_over && until_us[function] == 0)
                    until_us[function] = INT64_MAX;
                break;
            case 1:
                v8_older_is_compiled(&older, place_of(function), now_us);
                if (!is_over && now_us >= flight_ends_us && until_us[function] == INT64_MAX)
                    until_us[function] = now_us;
                break;
            default:
                if (below(200) != 0)
                    break;
                v8_older_all_are_new(&older, now_us);
                is_over = true;
                for (size_t i = 0; i < FUNCTIONS; i++)
                    until_us[i] = now_us;
            }
            function = below(FUNCTIONS);
            CHECK(v8_older_until_us(&older, place_of(function)) == until_us[function]);
        }
        v8_older_end(&older);
        CHECK(older.functions == NULL && v8_older_until_us(&older, place_of(0)) == 0);
    }
}

/* When the table is full, every function counts as old. */
static void too_many_functions_are_all_old(void)
{
    struct v8_older older;
    v8_older_begin(&older, 1);
    for (uint64_t i = 1; i <= ENTRIES / 2; i++)
        v8_older_add(&older, i << 20);
    CHECK(v8_older_until_us(&older, 1) == 0);
    v8_older_add(&older, 1);
    CHECK(v8_older_until_us(&older, 1) == INT64_MAX && v8_older_until_us(&older, 2) == INT64_MAX);
    v8_older_is_compiled(&older, 2, INT64_MAX);
    CHECK(v8_older_until_us(&older, 2) == INT64_MAX);
    v8_older_end(&older);
}

int main(void)
{
    age_is_that_of_a_model();
    too_many_functions_are_all_old();
    puts("old");
    return 0;
}
