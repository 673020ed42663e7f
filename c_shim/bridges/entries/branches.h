/* The processor's side of plan.c: what a jump to a stub replaces, and which bytes are a jump or a call. */
#ifndef ALLOCSAMPLE_BRIDGES_ENTRIES_BRANCHES_H
#define ALLOCSAMPLE_BRIDGES_ENTRIES_BRANCHES_H

#include "entries.h"

/* A compiler fills up to a multiple of this before the next function. */
#define FUNCTION_ALIGNMENT 16
/* Bytes that branches_in_file may read behind those that it is given. */
#define BRANCHES_OVERRUN 16

/* Decides how many bytes at the beginning of the function stay, and how many are moved to make room for a jump. Returns NULL, or the
 * reason why there cannot be a jump. The function has `own` bytes, or `bytes` with the padding behind it. */
HIDDEN const char *branches_plan_head(const uint8_t *code, size_t own, size_t bytes, struct entry_found *entry);

struct branch {
    uintptr_t at, target;
    uintptr_t distance_at; /* see struct entry_site; of a moved jump, whatever it is */
    bool is_short;         /* it has no room for another distance */
    bool may_be_none;      /* the bytes before it are not known, so that it may be part of another instruction */
};
typedef void branch_visitor(void *argument, const struct branch *branch);

/* Calls `visit` with each branch of one of the functions: its code, and all bytes that may be a branch. */
HIDDEN void branches_of_function(const uint8_t *code, size_t bytes, const struct entry_found *entry, branch_visitor *visit,
                                 void *argument);

/* Calls `visit` with all bytes that look like a branch into this range, whether they are one or not. Looks at the first `bytes`, and may
 * read `room` bytes. */
struct range {
    uintptr_t start, end;
};
HIDDEN void branches_in_file(const uint8_t *code, size_t bytes, size_t room, uintptr_t address, struct range range,
                             branch_visitor *visit, void *argument);

#endif
