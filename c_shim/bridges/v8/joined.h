/* A stack of machine frames, and between them the functions that were inlined into them. */
#ifndef ALLOCSAMPLE_BRIDGES_V8_JOINED_H
#define ALLOCSAMPLE_BRIDGES_V8_JOINED_H

#include "v8.h"

struct joined_stack {
    allocsample_frame frames[V8_DEPTH];
    size_t depth;
};

static inline void joined_push(struct joined_stack *stack, uint32_t function)
{
    if (function != 0 && stack->depth < V8_DEPTH)
        stack->frames[stack->depth++] = (allocsample_frame){.function = function};
}

/* Joins two stacks of the same moment, both from the callee on: `machine` has all machine frames, `named` has the functions of scripts,
 * inlined ones among them. All machine frames stay, in their order; the other functions are put between them where they fit. False:
 * `named` lacks one of the machine's functions, as it does for code that has just been compiled, and what is inlined into that
 * one is unknown. */
static inline bool v8_join_stacks(struct joined_stack *joined, const struct v8_frame *machine, size_t depth,
                                  const uint32_t *named, size_t named_depth)
{
    size_t next = 0;
    bool is_complete = named_depth > 0;
    joined->depth = 0;
    for (size_t i = 0; i < depth; i++) {
        size_t at = next;
        while (machine[i].is_of_script && at < named_depth && named[at] != machine[i].function)
            at++;
        if (machine[i].is_of_script && at < named_depth) {
            for (; next < at; next++)
                joined_push(joined, named[next]);
            next++;
        } else if (machine[i].is_of_script && next < named_depth) {
            is_complete = false; /* where `named` has ended it was too deep for V8 */
        }
        joined_push(joined, machine[i].function);
    }
    for (; next < named_depth; next++)
        joined_push(joined, named[next]);
    return is_complete;
}

#endif
