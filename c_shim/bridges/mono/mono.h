/* What the parts of the bridge to Mono share: weak handles of the objects that are samples. */
#ifndef ALLOCSAMPLE_BRIDGES_MONO_H
#define ALLOCSAMPLE_BRIDGES_MONO_H

#include "allocsample.h"
#include "bridge.h"

/* The watch over one object. */
struct mono_watch;

/* False: Mono lacks a function, or there is no memory. */
HIDDEN bool mono_watch_prepare(const allocsample_hooks *hooks, allocsample_heap *heap);

/* One that nobody else has; NULL: too many objects are watched. Any thread. */
HIDDEN struct mono_watch *mono_watch_take(void);

/* What stands for the object's address, which changes. Of no watch: a number that is never told to be dead. */
HIDDEN uintptr_t mono_watch_key(const struct mono_watch *watch);

/* The object is a sample. On the thread that allocates it; NULL does nothing. */
HIDDEN void mono_watch_begin(struct mono_watch *watch, void *object);

/* It is none. NULL does nothing. */
HIDDEN void mono_watch_give_back(struct mono_watch *watch);

/* After a collection, of the old objects too or of the young ones alone: there is something to tell. */
HIDDEN void mono_watch_ask(bool are_old_collected);

/* Tells of the dead, if it was asked for.
 *
 * Not between a collection's end and the return from it: there the collector's lock is held, and where a program has a bridge
 * to another collector, who looks at a weak handle waits for that lock until the other one has been asked. */
HIDDEN void mono_watch_tell_dead(void);

/* In a forked child: no other thread is in here. */
HIDDEN void mono_watch_after_fork_in_child(void);

#endif
