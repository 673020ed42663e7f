/* Declarations shared by the parts of the JVM bridge: the used parts of JVMTI and JNI, and names of methods. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_H
#define ALLOCSAMPLE_BRIDGES_JVM_H

#include "allocsample.h"
#include "bridge.h"

/* Frames of a stack at most. */
#define DEPTH 512

/* Places in the table of functions (their numbers in the specification, less one). */
enum {
    SET_EVENT_NOTIFICATION_MODE = 1,
    GET_THREAD_INFO = 8,
    RUN_AGENT_THREAD = 11,
    GET_CURRENT_THREAD = 17,
    DEALLOCATE = 46,
    GET_CLASS_SIGNATURE = 47,
    GET_SOURCE_FILE_NAME = 49,
    GET_CLASS_METHODS = 51,
    GET_METHOD_NAME = 63,
    GET_METHOD_DECLARING_CLASS = 64,
    GET_LINE_NUMBER_TABLE = 69,
    GET_LOADED_CLASSES = 77,
    GET_STACK_TRACE = 103,
    FORCE_GARBAGE_COLLECTION = 107,
    SET_EVENT_CALLBACKS = 121,
    ADD_CAPABILITIES = 141,
    RELINQUISH_CAPABILITIES = 142,
    SET_HEAP_SAMPLING_INTERVAL = 155
};
enum { JNI_DELETE_LOCAL_REF = 23, VM_DETACH_CURRENT_THREAD = 5, VM_GET_ENV = 6, VM_ATTACH_CURRENT_THREAD_AS_DAEMON = 7 };
enum { JVMTI_VERSION_11 = 0x300b0000, JNI_VERSION_1_6 = 0x00010006 };
/* Events, less the first one's number: places in the table of callbacks. */
enum {
    FIRST_EVENT = 50,
    VM_INIT = 0,
    VM_DEATH = 1,
    THREAD_START = 2,
    CLASS_LOAD = 5,
    CLASS_PREPARE = 6,
    GC_START = 31,
    GC_FINISH = 32,
    SAMPLED_OBJECT_ALLOC = 36,
    EVENTS = 37
};
/* Bits of jvmtiCapabilities. */
enum { CAN_GET_SOURCE = 11, CAN_GET_LINES = 12, CAN_TELL_GC = 31, CAN_SAMPLE = 43 };

typedef void *const *const *environment; /* a pointer to a pointer to the table */

#define CALL(ENV, INDEX, TYPE, ...) (((int (*) TYPE)(*(ENV))[INDEX])(__VA_ARGS__))

struct frame {
    void *method;
    int64_t location;
};

/* ---- names.c ---- */

/* Once, before the functions below. False: there is no memory. */
HIDDEN bool jvm_names_prepare(const allocsample_hooks *hooks, allocsample_heap *heap, environment jvmti);

/* The number of a class's type. Where Java code may run, as the two below. */
HIDDEN uint32_t jvm_type_by_name(void *class);

/* Functions and lines of the frames that the JVM has found. */
HIDDEN void jvm_describe(environment jni, const struct frame *found, allocsample_frame *frames, int32_t count);

/* Asks for the names of places that were seen in malloc. */
HIDDEN void jvm_name_places(environment jni);

/* Memory that the JVM has allocated for an answer, or NULL. */
HIDDEN void jvm_give_back(void *memory);

/* The number and line of a place in a method, as far as they are known: names can be asked for only where Java code may
 * run. What is not known is found out later. Any thread, also in malloc. */
HIDDEN allocsample_frame jvm_frame_in_malloc(void *method, int64_t location);

/* ---- types.c ---- */

/* The same in less time, for an object of this class that the stack of `frames` allocates. */
HIDDEN uint32_t jvm_type(environment jni, void *class, const allocsample_frame *frames, size_t count);

/* ---- jvm.c ---- */

/* Joins the JVM of a process that was attached to, and leaves it. On a thread that the JVM does not know. */
HIDDEN void jvm_attach(void);
HIDDEN void jvm_detach(void);

/* ---- native.c ---- */

/* Finds the JVM's walker for native code. */
HIDDEN void jvm_native_prepare(environment vm, environment jvmti);

/* The JVM runs: its stacks can be walked from now on. Where Java code may run. */
HIDDEN void jvm_native_begin(environment jni);

/* A class has been made ready to run. */
HIDDEN void jvm_native_has_class(void *class);

/* The JVM ends: its stacks are not walked any more. */
HIDDEN void jvm_native_end(void);

/* The walker of the hook ABI: Java's frames of a thread that is in native code or in the JVM. */
HIDDEN size_t jvm_native_walk(void *user, allocsample_frame *frames, size_t capacity);

#endif
