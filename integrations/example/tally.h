/* A toy machine for docs/bridges.md: objects of a heap of its own, and a chain of calls for each thread. */
#ifndef TALLY_H
#define TALLY_H

#include <stddef.h>

struct tally_call {
    const struct tally_call *caller;
    const char *function, *file;
    unsigned first_line, line; /* the line changes while the function runs */
};

/* Calls of the calling thread, the innermost first. */
const struct tally_call *tally_calls(void);
void tally_enter(struct tally_call *call);
void tally_leave(void);

/* NULL: there is no memory. */
void *tally_new(size_t bytes);
void tally_delete(void *object);

#endif
