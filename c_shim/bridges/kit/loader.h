/* Reports objects that the loader has mapped before any of their code runs.
 *
 * The loader calls a function that does nothing whenever its list of objects changes, for debuggers to stop there: `r_brk` of
 * `_r_debug`. It is made to jump here. dlopen calls it when an object and all that it needs are mapped, before their constructors,
 * and holds the loader's lock: no other thread can find a function of theirs. An object that was not on the list at the last call is
 * one of these. glibc only. */
#ifndef ALLOCSAMPLE_BRIDGES_LOADER_H
#define ALLOCSAMPLE_BRIDGES_LOADER_H

#include "bridge.h"

/* From now on `mapped` is called with the lowest address of every object that is opened: on the thread that opens it, which holds the
 * loader's lock; the object may not be relocated yet. One that was opened while the agent was off, or behind a filter of system
 * calls, is not reported: its code may run by the time the agent is on. Then `missed` is called with the reason, once for each, on
 * such a thread. In `join` only, by one bridge. False: it is not possible here. */
HIDDEN bool loader_watch(void (*mapped)(uintptr_t object), void (*missed)(const char *why));

#endif
