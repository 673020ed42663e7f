/* The list of bridges, for the core: see bridge.h. */
#ifndef ALLOCSAMPLE_BRIDGES_REGISTRY_H
#define ALLOCSAMPLE_BRIDGES_REGISTRY_H

#include "services.h"

/* Whether the user asks for this enum bridge_group now. Any thread. */
HIDDEN bool bridges_are_asked_for(uint32_t group);

/* Joins what this process has of these groups, a bit for each enum bridge_group. Before `main`, once for each. */
HIDDEN void bridges_join(uint32_t groups);

/* Joins and leaves runtimes while the program's threads run. May be called repeatedly, by one thread at a time. */
HIDDEN void bridges_attach(uint32_t groups);
HIDDEN void bridges_detach(void);

/* On the agent's own thread: code of the object that starts at this address has run. False: ask again later. */
HIDDEN bool bridges_look(uint64_t object);

/* On a thread of the program: whether a bridge waits for an object with this path to run, so that somebody should look soon. */
HIDDEN bool bridges_await(const char *path, size_t length);

/* On the agent's own thread: what the allocators of this process count themselves. Returns how many there are of `own`. */
struct bridge_own;
HIDDEN size_t bridges_count(struct bridge_own *own, size_t room);

/* Around each `dlclose`. */
HIDDEN void bridges_before_dlclose(void);
HIDDEN void bridges_after_dlclose(void);

/* In a forked child: releases what other threads of the parent held in a bridge. */
HIDDEN void bridges_after_fork_in_child(void);

/* Returns whether the program has a conservative collector, which stops threads with signals and scans their stacks. Takes the
 * loader's lock. */
HIDDEN bool bridges_have_scanning_collector(void);

/* A bridge that found its runtime and declined to join it: see `decline` in services.h. Any thread. */
struct bridge_declined {
    const char *heap, *what, *why;
};
_Static_assert(sizeof(struct bridge_declined) == 24 && offsetof(struct bridge_declined, what) == 8 &&
                   offsetof(struct bridge_declined, why) == 16,
               "src/preload/start.rs mirrors this layout");
HIDDEN void bridges_decline(const char *heap, const char *what, const char *why);
/* Returns false if there are no more. */
HIDDEN bool bridges_declined(size_t index, struct bridge_declined *found);

#endif
