/* The gaps that the JVM draws between samples. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_GAP_H
#define ALLOCSAMPLE_BRIDGES_JVM_GAP_H

#include "jvm.h"

/* Finds where a thread of this JVM has its gap. Once, while it runs, in a thread that may run Java code. */
HIDDEN void jvm_gap_begin(environment jvmti, environment jni);

/* True if the JVM samples too early, because the calling thread has allocated less than its gap. There is no sample then, and the gap
 * continues. To be called first in the callback for a sampled object. */
HIDDEN bool jvm_gap_goes_on(environment jni);

/* Replaces the calling thread's next gap by one with this mean. In the callback for a sampled object of `size` bytes; 0: there is none.
 * False: the gap stays. */
HIDDEN bool jvm_gap_redraw(environment jni, uint64_t interval_bytes, uint64_t size);

/* The same for the first gap of the calling thread. In the callback for a thread that begins. */
HIDDEN void jvm_gap_draw_first(environment jni, uint64_t interval_bytes);

#endif
