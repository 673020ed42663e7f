/* A stack of machine frames, and between them the functions that were inlined into them. */
#ifndef ALLOCSAMPLE_BRIDGES_V8_JOINED_H
#define ALLOCSAMPLE_BRIDGES_V8_JOINED_H

#include "v8.h"

/* A function on a stack of V8's CPU profiler. */
struct joined_named {
    uint32_t function; /* 0: not known; it is the outermost code of its script, which is never inlined */
    int32_t script;
};

struct joined_stack {
    allocsample_frame frames[V8_DEPTH];
    size_t depth;
};

static inline void joined_push(struct joined_stack *stack, uint32_t function)
{
    if (function != 0 && stack->depth < V8_DEPTH)
        stack->frames[stack->depth++] = (allocsample_frame){.function = function};
}

static inline bool joined_may_be(struct joined_named named, const struct v8_frame *machine)
{
    return named.script == machine->script && (named.function == machine->function || named.function == 0);
}

/* Joins two stacks of the same moment, both from the callee on: `machine` has all machine frames, `named` has the functions of scripts,
 * inlined ones among them. All machine frames stay, in their order; the other functions are put between them where they fit. False:
 * `named` lacks one of the machine's functions, as it does for code that has just been compiled, and what is inlined into that
 * one is unknown. */
static inline bool v8_join_stacks(struct joined_stack *joined, const struct v8_frame *machine, size_t depth,
                                  const struct joined_named *named, size_t named_depth)
{
    size_t next = 0;
    bool is_complete = named_depth > 0;
    joined->depth = 0;
    for (size_t i = 0; i < depth; i++) {
        size_t at = next;
        while (machine[i].script != 0 && at < named_depth && !joined_may_be(named[at], &machine[i]))
            at++;
        if (machine[i].script != 0 && at < named_depth) {
            for (; next < at; next++)
                joined_push(joined, named[next].function);
            next++;
        } else if (machine[i].script != 0 && next < named_depth) {
            is_complete = false; /* where `named` has ended it was too deep for V8 */
        }
        joined_push(joined, machine[i].function);
    }
    for (; next < named_depth; next++)
        joined_push(joined, named[next].function);
    return is_complete;
}

#endif
