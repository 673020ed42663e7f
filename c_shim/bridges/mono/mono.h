/* Declarations shared by the parts of the Mono bridge: weak handles of sampled objects. */
#ifndef ALLOCSAMPLE_BRIDGES_MONO_H
#define ALLOCSAMPLE_BRIDGES_MONO_H

#include "allocsample.h"
#include "bridge.h"
#include "kit/watches.h"

/* False: Mono lacks a function, or there is no memory. */
HIDDEN bool mono_watch_prepare(const allocsample_hooks *hooks, allocsample_heap *heap);

/* Takes a free watch; NULL: too many objects are watched. Any thread. */
HIDDEN struct watch *mono_watch_take(void);

/* A number that stands for the object's address, which changes. Without a watch: one that never dies. */
HIDDEN uintptr_t mono_watch_key(const struct watch *watch);

/* The object is a sample. On the thread that allocates it; NULL does nothing. */
HIDDEN void mono_watch_begin(struct watch *watch, void *object);

/* Returns a watch whose object is not a sample. NULL does nothing. */
HIDDEN void mono_watch_give_back(struct watch *watch);

/* Requests a look for dead objects after a collection: of all objects, or of the young ones alone. */
HIDDEN void mono_watch_ask(bool are_old_collected);

/* Reports dead objects, if a look was requested.
 *
 * Not between a collection's end and the return from it: there the collector's lock is held, and where a program has a bridge
 * to another collector, who looks at a weak handle waits for that lock until the other one has been asked. */
HIDDEN void mono_watch_tell_dead(void);

/* Releases locks in a forked child: their holders do not exist there. */
HIDDEN void mono_watch_after_fork_in_child(void);

#endif
