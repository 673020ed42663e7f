/* Java's frames of the thread for which the JVM calls back, without the JVM's own walk. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_STACK_H
#define ALLOCSAMPLE_BRIDGES_JVM_STACK_H

#include "jvm.h"

enum jvm_walked {
    JVM_WALKED,
    /* There is code in it that is not known yet: the JVM is to be asked, and `jvm_stack_learn` to be told. */
    JVM_HAS_NEW_CODE,
    /* Only the JVM can tell. */
    JVM_NOT_WALKED
};

/* Reads how this JVM's frames lie. Once, while it runs, in a thread that may run Java code. */
HIDDEN void jvm_stack_begin(environment jvmti, environment jni);

/* A class has been made ready to run: its methods may lie where those of one that is gone did. */
HIDDEN void jvm_stack_has_new_class(void);

/* The calling thread's frames, from the innermost on. In a callback of the JVM. */
HIDDEN enum jvm_walked jvm_stack_walk(environment jni, allocsample_frame *frames, size_t capacity, size_t *count);

/* The frames that the JVM found in the same callback, and their meaning. */
HIDDEN void jvm_stack_learn(environment jni, const struct frame *found, const allocsample_frame *frames, size_t count);

/* Whether the stack just walked is one of those that the JVM is asked for nevertheless. */
HIDDEN bool jvm_stack_is_to_be_checked(void);

/* The JVM found something else. No stack is walked any more. */
HIDDEN void jvm_stack_is_wrong(void);

#endif
