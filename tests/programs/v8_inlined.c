/* Functions that V8 inlined stand between the machine frames that they were inlined into, whatever the stacks are; and the place
 * at which V8 draws objects is found among places that are called nearly as often. */
#define _GNU_SOURCE
#include "../../c_shim/bridges/v8/draws.c"
#include "../../c_shim/bridges/v8/joined.h"
#include "check.h"
#include "bridge_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- stacks ---- */

enum { FUNCTIONS = 6, DEEPEST = 40 };

static int32_t script_of(uint32_t function)
{
    return 1 + (int32_t)function / 3;
}

static bool is_outermost_of_script(uint32_t function)
{
    return function % 3 == 0;
}

/* Few functions, so that most stacks have recursion: with names for all but outermost code, the joined stack is the real one (but that a machine frame of
 * no script may stand on either side of what was inlined beside it). */
static void known_functions_are_put_in_their_places(void)
{
    for (int round = 0; round < 200000; round++) {
        struct v8_frame machine[DEEPEST];
        struct joined_named named[DEEPEST];
        uint32_t known[DEEPEST];
        size_t depth = 0, named_depth = 0, all = below(DEEPEST);
        for (size_t i = 0; i < all; i++) {
            bool is_of_script = below(8) != 0;
            uint32_t function = (uint32_t)below(FUNCTIONS) + (is_of_script ? 1 : 100);
            bool is_outermost = is_of_script && is_outermost_of_script(function);
            bool is_inlined = is_of_script && !is_outermost && i + 1 < all && below(2) == 0;
            int32_t script = is_of_script ? script_of(function) : 0;
            if (is_of_script) {
                known[named_depth] = function;
                named[named_depth++] = (struct joined_named){is_outermost && below(2) == 0 ? 0 : function, script};
            }
            if (!is_inlined)
                machine[depth++] = (struct v8_frame){.function = function, .script = script};
        }
        struct joined_stack joined;
        bool is_complete = v8_join_stacks(&joined, machine, depth, named, named_depth);
        CHECK(is_complete == (named_depth > 0));
        CHECK(joined.depth == all);
        size_t next = 0;
        for (size_t i = 0; i < joined.depth; i++)
            if (joined.frames[i].function < 100)
                CHECK(joined.frames[i].function == known[next++]);
        CHECK(next == named_depth);
    }
}

/* Whatever the two stacks are, even of different moments, no machine frame is lost, and none changes places. */
static void machine_frames_stay(void)
{
    for (int round = 0; round < 200000; round++) {
        struct v8_frame machine[DEEPEST];
        struct joined_named named[DEEPEST];
        size_t depth = below(DEEPEST), named_depth = below(DEEPEST), next = 0;
        for (size_t i = 0; i < depth; i++)
            machine[i] = (struct v8_frame){.function = (uint32_t)below(FUNCTIONS) + 1, .script = (int32_t)below(4)};
        for (size_t i = 0; i < named_depth; i++)
            named[i] = (struct joined_named){(uint32_t)below(FUNCTIONS + 1), 1 + (int32_t)below(3)};
        struct joined_stack joined;
        v8_join_stacks(&joined, machine, depth, named, named_depth);
        for (size_t i = 0; i < joined.depth && next < depth; i++)
            next += joined.frames[i].function == machine[next].function;
        CHECK(next == depth);
    }
}

static void deep_stacks_are_cut(void)
{
    static struct v8_frame machine[V8_DEPTH];
    static struct joined_named named[2 * V8_DEPTH];
    struct joined_stack joined;
    for (size_t i = 0; i < V8_DEPTH; i++)
        machine[i] = (struct v8_frame){.function = 1, .script = 1};
    for (size_t i = 0; i < 2 * V8_DEPTH; i++)
        named[i] = (struct joined_named){i % 2 == 0 ? 2 : 1, 1};
    CHECK(v8_join_stacks(&joined, machine, V8_DEPTH, named, 2 * V8_DEPTH) && joined.depth == V8_DEPTH);
    CHECK(joined.frames[0].function == 2 && joined.frames[1].function == 1);
    /* V8 noted fewer: the machine's own go on. */
    CHECK(v8_join_stacks(&joined, machine, 100, named, 20) && joined.depth == 110);
    CHECK(!v8_join_stacks(&joined, machine, 1, (const struct joined_named[]){{3, 1}}, 1) && joined.depth == 2);
    CHECK(!v8_join_stacks(&joined, machine, 1, NULL, 0) && joined.depth == 1);
}

/* ---- draws ---- */

static uint64_t noticed;

static void notice(void *user)
{
    CHECK(user == &noticed);
    noticed++;
}

static void call(struct v8_draws *draws, uintptr_t from, size_t size)
{
    if (draws->callers != NULL)
        count_call(draws, from, size);
    else if (from == drawing_from && size == drawing_size)
        on_draw(draws);
}

/* What V8's profiler does for a sample: a vector grows with the depth of the stack, the sample is made and is put into a table; then
 * other code runs. 1,000 is the place. */
static void draw(struct v8_draws *draws)
{
    for (size_t size = 8, depth = 1 + below(8); size <= 8 * depth; size *= 2)
        call(draws, 3000, size);
    call(draws, 1000, 40);
    if (below(8) != 0)
        call(draws, 2000, 24); /* not every time */
    for (size_t i = 0; i < below(4); i++)
        call(draws, 4000 + below(100), 8 << below(6));
}

static void the_place_is_found_and_followed(void)
{
    int found = 0;
    object = 1; /* as if V8 were watched */
    for (int round = 0; round < 200; round++) {
        struct v8_draws draws;
        uint64_t number = 0;
        bool was_right = true;
        drawing_from = drawing_size = noticed = 0;
        was_wrong = false;
        v8_draws_begin(&draws);
        CHECK(draws.callers != NULL && draws_here == &draws);
        draws.on_draw = notice;
        draws.user = &noticed;
        for (int reading = 0; reading < 40; reading++) {
            for (uint64_t i = below(30); i > 0; i--, number++)
                draw(&draws);
            v8_draws_before_reading(&draws);
            /* V8 makes its list in the middle of the reading, and draws on both sides of that. */
            for (uint64_t i = below(8) / 7; i > 0; i--, number++)
                draw(&draws);
            uint64_t listed = number;
            for (uint64_t i = below(8) / 7; i > 0; i--, number++)
                draw(&draws);
            /* It copies all samples. */
            for (uint64_t i = 0; i < listed; i++)
                call(&draws, 5000, 48);
            /* A collection in the middle of a reading kills what was drawn last, now and then. */
            bool is_short = draws.callers == NULL && listed > draws.highest + 2 && below(10) == 0;
            enum v8_numbers numbers = v8_draws_after_reading(&draws, listed - (is_short ? 2 : 0));
            was_right = was_right && numbers != NUMBERS_WRONG && (numbers == NUMBERS_RIGHT || is_short);
        }
        found += was_right;
        if (was_right) {
            CHECK(drawing_from == 1000 && drawing_size == 40);
            CHECK(draws.count == number && noticed > 0 && noticed < number);
            /* A draw that was missed is found out by the next reading that has a new sample. */
            draw(&draws);
            v8_draws_before_reading(&draws);
            CHECK(v8_draws_after_reading(&draws, number + 2) == NUMBERS_WRONG);
        }
        CHECK(draws_here == NULL && !v8_draws_are_known() && was_wrong);
        v8_draws_end(&draws);
        v8_draws_begin(&draws);
        CHECK(draws_here == NULL);
    }
    /* The other place is called for 32 samples in a row with a probability of (7/8)^32 = 0.014, and found out later. */
    CHECK(found >= 188);
}

static void progress(void *user)
{
    const struct v8_draws *draws = user;
    uint64_t expected = 1;
    for (uint64_t i = 0; i < noticed; i++)
        expected *= 4;
    CHECK(draws->count == expected);
    noticed++;
}

/* The first draws are to be read soon; so many readings take long. */
static void progress_is_reported_at_powers_of_four(void)
{
    struct v8_draws draws = {.on_progress = progress};
    draws.isolate = &draws;
    noticed = 0;
    for (int i = 0; i < 5000; i++)
        on_draw(&draws);
    CHECK(noticed == 7); /* 4^6 = 4096 */
}

static uint64_t reported_calls;

static void on_reported(const struct shim_caller *caller)
{
    CHECK(caller->pc != 0 && caller->sp != 0);
    reported_calls++;
}

/* Nobody draws on this thread. */
static void one_in_many_calls_is_reported(void)
{
    report_calls = on_reported;
    next_new = malloc;
    draws_here = NULL;
    for (int i = 0; i < 100 * CALLS_PER_REPORT; i++)
        free(new_in_v8(8));
    CHECK(reported_calls == 100);
}

/* Where V8's samples are not numbered by calls of any one place, none is trusted. */
static void no_place_is_trusted_without_evidence(void)
{
    struct v8_draws draws;
    drawing_from = drawing_size = 0;
    was_wrong = false;
    v8_draws_begin(&draws);
    for (uint64_t reading = 1; reading < 40; reading++) {
        for (int i = 0; i < 20; i++)
            draw(&draws);
        v8_draws_before_reading(&draws);
        CHECK(v8_draws_after_reading(&draws, reading * 20 + reading % 2) == NUMBERS_RIGHT);
    }
    CHECK(!v8_draws_are_known());
    v8_draws_end(&draws);
}

int main(void)
{
    known_functions_are_put_in_their_places();
    machine_frames_stay();
    deep_stacks_are_cut();
    the_place_is_found_and_followed();
    progress_is_reported_at_powers_of_four();
    one_in_many_calls_is_reported();
    no_place_is_trusted_without_evidence();
    puts("named");
    return 0;
}
