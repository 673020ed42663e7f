/* Calls functions of an allocator that may take its locks, on a thread that nobody depends on.
 *
 * jemalloc and similar allocators keep a record of every thread that has called them, until libc reports the thread's end.
 * After an attach the agent's own thread ends without libc, so it must not call them. And a lock may never be released: a
 * program may have called `exit` in a signal handler that interrupted the allocator. So the caller waits for a limited time,
 * and does not ask again after one failure. */
#ifndef ALLOCSAMPLE_BRIDGES_ASKING_H
#define ALLOCSAMPLE_BRIDGES_ASKING_H

#include "bridge.h"

/* Runs `ask` on a new thread, which takes no samples and gets no signals. False: it has not come back in time, or there was no thread
 * for it. `ask` may still be at work then, so what it writes to must not be used any more. One caller at a time. */
HIDDEN bool asking_run(void (*ask)(void));
/* In a forked child: the locks that an unanswered question holds stay locked there. */
HIDDEN void asking_after_fork_in_child(void);

#endif
