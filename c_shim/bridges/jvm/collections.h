/* Which of the JVM's collections have looked at all of its heap, and at what was allocated before which moment. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_COLLECTIONS_H
#define ALLOCSAMPLE_BRIDGES_JVM_COLLECTIONS_H

#include "allocsample.h"
#include "shim.h"

struct jvm_pause {
    uint32_t kind; /* ALLOCSAMPLE_MINOR, also where nobody knows */
    /* ALLOCSAMPLE_MAJOR: what was allocated before this moment has been looked at. */
    uint64_t since_ns;
};

/* Finds out what this JVM tells of its collections. Once, while it runs, in a thread that may run Java code. */
HIDDEN void jvm_collections_begin(void);

/* Java's threads stand still from here on. */
HIDDEN void jvm_collections_pause_begins(uint64_t now_ns);

/* They are about to go on. On the thread that said that they stand still. */
HIDDEN struct jvm_pause jvm_collections_pause_ends(void);

#endif
