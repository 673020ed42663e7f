/* For all bridges: numbers for names. */
#ifndef ALLOCSAMPLE_BRIDGES_NAMES_H
#define ALLOCSAMPLE_BRIDGES_NAMES_H

#include "allocsample.h"
#include "bridge.h"
#include "kit/lock.h"

/* Initial value of a hash. */
#define NAMES_SEED UINT64_C(0xcbf29ce484222325)

/* FNV-1a of `text`, continued from `hash`; never 0. The end of the text counts, so that "ab", "c" is not "a", "bc". */
static inline uint64_t names_hash(uint64_t hash, const char *text)
{
    for (; *text != 0; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    hash ^= 0x1f;
    return hash + (hash == 0);
}

/* Numbers by the hash of what they stand for. Never removed, so that a number means one thing. */
struct names {
    struct names_entry *entries; /* NULL: not made */
    bridge_lock lock;
    uint32_t used;
};

/* Takes memory of its own for 32,768 names, which is touched as it is needed. False: there is none. */
HIDDEN bool names_make(struct names *names);

/* The number of `hash`, which is not 0; `is_new` tells whether it was given now. 0: no room, or somebody else who was
 * interrupted is in here. Any thread, also in a signal handler. */
HIDDEN uint32_t names_number(struct names *names, uint64_t hash, bool *is_new);

/* The number of the function `name` at this place, which is told to the agent when it is new; 0 as above. */
HIDDEN uint32_t names_function(struct names *names, const allocsample_hooks *hooks, allocsample_heap *heap,
                               const char *name, const char *file, uint32_t first_line);

/* Releases the lock in a forked child: its holder does not exist there. */
HIDDEN void names_after_fork_in_child(struct names *names);

#endif
