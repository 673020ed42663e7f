/* The allocation buffer that the main thread has when the JVM begins to sample. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_BUFFER_H
#define ALLOCSAMPLE_BRIDGES_JVM_BUFFER_H

#include "jvm.h"

/* Makes the JVM sample from the calling thread's buffer, too. To be called in VM_INIT, with the event of sampled objects enabled. */
HIDDEN void jvm_buffer_begin(environment jni, void *thread);
/* The address of the JVM's own thread behind a java.lang.Thread; 0: not known. To be called where Java code may run. */
HIDDEN uintptr_t jvm_thread_address(environment jni, void *thread);
/* The distance from the JVM's own thread to its JNI environment, which is a part of it. False: it is not. Where Java code may run. */
HIDDEN bool jvm_find_distance_of_jni(environment jvmti, environment jni, uintptr_t *distance);
/* Whether the object being sampled on the calling thread is the array of jvm_buffer_begin. */
HIDDEN bool jvm_buffer_is_beginning(void);

#endif
