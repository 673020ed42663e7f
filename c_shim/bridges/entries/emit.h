/* The processor's side of stubs.c: writes the pieces of a stub. */
#ifndef ALLOCSAMPLE_BRIDGES_ENTRIES_EMIT_H
#define ALLOCSAMPLE_BRIDGES_ENTRIES_EMIT_H

#include "entries.h"
#include "kit/code.h"

/* Where a stub's own code goes. */
struct writer {
    struct code_room *room;
    bool is_far; /* a distance did not fit */
};

static inline uintptr_t writer_here(const struct writer *writer)
{
    return (uintptr_t)writer->room->start + writer->room->used;
}

/* The place of a conditional branch whose target is written later; 0: there is none. */
typedef size_t later;
/* Makes the branch lead to the next instruction that is written. */
HIDDEN void emit_here(struct writer *writer, later branch);

/* Branches if the return address is in the allocator's code. */
HIDDEN later emit_if_inside(struct writer *writer, const struct entries_found *found);
/* Subtracts the size that the function is asked for, or 1 instead of 0, from the thread's counter of this number. */
HIDDEN void emit_charge(struct writer *writer, const struct entry *entry, size_t number);
/* Right after it: if the counter has borrowed, or has not. */
HIDDEN later emit_if_due(struct writer *writer);
HIDDEN later emit_if_not_due(struct writer *writer);
/* Branches if the filter has no mark for the block that the function is given: see shim_filter_granule. */
HIDDEN later emit_if_unmarked(struct writer *writer, const struct entry *entry);
/* Jumps to entry_due, with the arguments as an array. Returns to the function's caller. */
HIDDEN void emit_due(struct writer *writer, const struct entry *entry);

struct stub {
    uintptr_t start, original;
};
/* Writes what the jump replaces, and the way back. A jump to another of the functions leads behind its stub. False: that is not
 * possible. */
HIDDEN bool emit_moved(struct writer *writer, const struct entries_found *all, const struct entry_found *found,
                       const struct stub *stubs);
/* A jump that a pointer may lead to. */
HIDDEN void emit_landing(struct writer *writer, uintptr_t to);

/* Makes a jump or a call in the allocator lead there. */
HIDDEN bool emit_site(const struct entry_site *site, uintptr_t to);
/* Where the jump leads to that code_put_jump has put there; 0: another instruction is there now, or no memory. */
HIDDEN uintptr_t emit_jump_target(uintptr_t at);

#endif
