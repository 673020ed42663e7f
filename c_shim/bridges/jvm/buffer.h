/* The allocation buffer that the main thread has when the JVM begins to sample. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_BUFFER_H
#define ALLOCSAMPLE_BRIDGES_JVM_BUFFER_H

#include "jvm.h"

/* Has the JVM sample from the calling thread's buffer, too. In VM_INIT, with the event of sampled objects on. */
HIDDEN void jvm_buffer_begin(environment jni, void *thread);
/* Where the JVM has a thread of Java's; 0: not known. Where Java code may run. */
HIDDEN uintptr_t jvm_thread_address(environment jni, void *thread);
/* Whether the calling thread's sampled object is none of the program's. */
HIDDEN bool jvm_buffer_is_beginning(void);

#endif
