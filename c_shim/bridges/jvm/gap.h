/* The gap that JDK 11 draws after a sampled object. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_GAP_H
#define ALLOCSAMPLE_BRIDGES_JVM_GAP_H

#include "jvm.h"

/* Finds where a thread of this JVM has its gap, if it is JDK 11. Once, while it runs, in a thread that may run Java code. */
HIDDEN void jvm_gap_begin(environment jvmti, environment jni);

/* Replaces the calling thread's next gap by one with this mean. In the callback for a sampled object. */
HIDDEN void jvm_gap_redraw(environment jni, uint64_t interval_bytes);

#endif
