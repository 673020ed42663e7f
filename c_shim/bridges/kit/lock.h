/* Locks of bridges. None is taken while the program's own code runs, and none by libc's means, which may allocate or be held
 * by an interrupted thread. */
#ifndef ALLOCSAMPLE_BRIDGES_LOCK_H
#define ALLOCSAMPLE_BRIDGES_LOCK_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Zero is the right initial value: free. */
typedef _Atomic(bool) bridge_lock;

/* Waits. Not where a signal handler may have interrupted the holder on this very thread. It yields now and then, as the holder
 * may be waiting for the processor that this thread keeps busy. */
static inline void lock_take(bridge_lock *lock)
{
    for (unsigned tries = 1; atomic_exchange_explicit(lock, true, memory_order_acquire); tries++) {
        if (tries % 64 == 0)
            sched_yield();
    }
}

/* False after some microseconds: the holder was stopped, or is what a signal handler on this thread interrupted. */
static inline bool lock_try(bridge_lock *lock)
{
    for (int tries = 0; tries < 1000; tries++) {
        if (!atomic_exchange_explicit(lock, true, memory_order_acquire))
            return true;
    }
    return false;
}

/* The same after a millisecond or so: the holder may wait for the processor. */
static inline bool lock_try_longer(bridge_lock *lock)
{
    for (int tries = 0; tries < 64; tries++) {
        if (lock_try(lock))
            return true;
        sched_yield();
    }
    return false;
}

/* Also in a forked child, where another thread of the parent held it. */
static inline void lock_release(bridge_lock *lock)
{
    atomic_store_explicit(lock, false, memory_order_release);
}

#endif
