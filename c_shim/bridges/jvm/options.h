/* What a user asks for when the JVM loads the agent. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_OPTIONS_H
#define ALLOCSAMPLE_BRIDGES_JVM_OPTIONS_H

#include "shim.h"

struct jvm_options {
    bool is_checking;        /* `check`: each stack is held against the JVM's */
    uint64_t interval_bytes; /* `interval=64K`, of all heaps; 0 if it is not given */
};

/* What `jcmd PID JVMTI.agent_load` prints as the return code then. */
#define JVM_UNKNOWN_OPTION 2

/* Options are separated by commas. `text` may be NULL. False: there is one that nobody knows, or a number that is none. */
HIDDEN bool jvm_read_options(const char *text, struct jvm_options *options);

#endif
