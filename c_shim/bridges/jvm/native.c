/* Java's frames above blocks of malloc: of a thread that called native code, or the JVM itself.
 *
 * AsyncGetCallTrace is the JVM's own walker for profilers. It asks nothing of the thread's state, and takes no lock. It is
 * given no registers: then it walks from where the thread left Java code, which the JVM wrote down, and only if that is
 * complete. What it needs is that the JVM has made an id of each method, which it does when it is asked for them, class by
 * class. */
#define _GNU_SOURCE
#include "jvm.h"

#include <dlfcn.h>
#include <ucontext.h>

/* ASGCT_CallFrame and ASGCT_CallTrace of forte.cpp. */
struct call {
    int32_t bytecode; /* -3: a native method */
    void *method;
};
struct trace {
    void *environment;
    int32_t count; /* negative: why there is none */
    struct call *calls;
};

static void (*get_trace)(struct trace *trace, int32_t depth, void *registers);
static environment vm, jvmti;
static _Atomic(bool) is_live;

void jvm_native_has_class(void *class)
{
    int32_t count = 0;
    void *methods = NULL;
    if (CALL(jvmti, GET_CLASS_METHODS, (environment, void *, int32_t *, void **), jvmti, class, &count, &methods) == 0)
        CALL(jvmti, DEALLOCATE, (environment, void *), jvmti, methods);
}

void jvm_native_begin(environment jni)
{
    int32_t count = 0;
    void **classes = NULL;
    if (get_trace == NULL ||
        CALL(jvmti, GET_LOADED_CLASSES, (environment, int32_t *, void ***), jvmti, &count, &classes) != 0)
        return;
    for (int32_t i = 0; i < count; i++) {
        jvm_native_has_class(classes[i]);
        CALL(jni, JNI_DELETE_LOCAL_REF, (environment, void *), jni, classes[i]);
    }
    CALL(jvmti, DEALLOCATE, (environment, void *), jvmti, classes);
    atomic_store_explicit(&is_live, true, memory_order_relaxed);
}

size_t jvm_native_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    static ucontext_t no_registers;
    struct call calls[DEPTH];
    struct trace trace = {.calls = calls};
    (void)user;
    if (!atomic_load_explicit(&is_live, memory_order_relaxed) ||
        CALL(vm, VM_GET_ENV, (environment, void **, int32_t), vm, &trace.environment, JNI_VERSION_1_6) != 0)
        return 0; /* none of Java's threads */
    get_trace(&trace, capacity < DEPTH ? (int32_t)capacity : DEPTH, &no_registers);
    size_t count = 0;
    for (int32_t i = 0; i < trace.count; i++) {
        if (calls[i].method == NULL)
            continue;
        frames[count] = jvm_frame_in_malloc(calls[i].method, calls[i].bytecode);
        count += frames[count].function != 0;
    }
    return count;
}

void jvm_native_prepare(environment the_vm, environment the_jvmti)
{
    /* It is loaded by the launcher, in no scope that we see. */
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library == NULL ? NULL : dlsym(library, "AsyncGetCallTrace");
    *(void **)&get_trace = found;
    vm = the_vm;
    jvmti = the_jvmti;
}

void jvm_native_end(void)
{
    atomic_store_explicit(&is_live, false, memory_order_relaxed);
}
