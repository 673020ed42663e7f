/* Deaths of sampled objects, and collections on request. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_DEATHS_H
#define ALLOCSAMPLE_BRIDGES_JVM_DEATHS_H

#include "jvm.h"

/* Starts the thread that looks for deaths. On a Java thread, once the JVM runs. False: there is none, and objects must not be
 * watched. */
HIDDEN bool jvm_deaths_begin(const allocsample_hooks *hooks, allocsample_heap *heap, environment jvmti, environment jni);

/* Ends that thread, and forgets all objects. */
HIDDEN void jvm_deaths_end(void);

/* Reports from now on when the object dies. On a Java thread, where Java code may run. False: it cannot. */
HIDDEN bool jvm_deaths_watch(environment jni, void *object, allocsample_id sample);

/* A collection has ended, which has examined all objects from before `examined_ns`; 0: it is not known to have examined all of any
 * time. In a pause, where no JVM function may be called. */
HIDDEN void jvm_deaths_collected(uint32_t kind, uint64_t examined_ns);

/* Reports all deaths of before. On a Java thread, the last time that the JVM can be asked. */
HIDDEN void jvm_deaths_at_exit(environment jni);

/* The `collect` of the hook ABI. On any thread, also of the JVM's own and inside malloc. */
HIDDEN int32_t jvm_deaths_want_collection(void *user);

/* Since when a collection that was requested is under way; 0: none is. */
HIDDEN uint64_t jvm_deaths_requested_since(void);

#endif
