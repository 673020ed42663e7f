/* Detects which GC pauses complete a full collection, and which objects it has examined. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_COLLECTIONS_H
#define ALLOCSAMPLE_BRIDGES_JVM_COLLECTIONS_H

#include "allocsample.h"
#include "shim.h"

struct jvm_pause {
    uint32_t kind; /* ALLOCSAMPLE_MINOR if the kind is unknown */
    /* For ALLOCSAMPLE_MAJOR: objects allocated before this time (CLOCK_MONOTONIC) have been examined. */
    uint64_t since_ns;
};

/* Locates the state to read in this JVM. Call once, on a thread attached to the JVM. */
HIDDEN void jvm_collections_begin(void);

/* Reports the address range of the Java heap to the agent, if it is known. Call after jvm_collections_begin. */
HIDDEN void jvm_collections_tell_range(const allocsample_hooks *hooks, allocsample_heap *heap);

/* Call at the start of a pause, when all Java threads have stopped. */
HIDDEN void jvm_collections_pause_begins(uint64_t now_ns);

/* Call before the Java threads resume, on the thread that called jvm_collections_pause_begins. */
HIDDEN struct jvm_pause jvm_collections_pause_ends(void);
/* Whether the collector marks while the program runs, and it is known when. */
HIDDEN bool jvm_collections_are_concurrent(void);

#endif
