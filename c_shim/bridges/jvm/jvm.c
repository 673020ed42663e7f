/* The JVM's heap as a heap of the hook ABI, by JVMTI (JDK 11 and later, JEP 331).
 *
 * The JVM samples by itself, by gaps whose mean is the interval that it is told; it calls back for each object that it has
 * drawn, once, however large. The object gets a number, which stands for its address, and is watched until it dies
 * (deaths.c). Names are asked for at the first sample that needs them, as classes may be unloaded later.
 *
 * JVMTI is a table of functions in an order that never changes; what is used of it is declared here. The JVM calls
 * Agent_OnLoad for `-agentpath:liballocsample.so`, which launch.c adds, and Agent_OnAttach for `jcmd PID
 * JVMTI.agent_load`; options.c has their options. */
#define _GNU_SOURCE
#include "jvm.h"
#include "buffer.h"
#include "collections.h"
#include "deaths.h"
#include "gap.h"
#include "kit/resume.h"
#include "options.h"
#include "stack.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct thread_info {
    char *name;
    int32_t priority;
    bool is_daemon;
    void *group, *loader;
};

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static environment jvmti;
/* Whether the JVM reports to us. While one thread joins or leaves, another one that would does nothing. */
enum { LEFT, JOINING, JOINED, ENDED };
static _Atomic(uint32_t) state;
/* The JVM draws gaps from its start, whether anybody listens or not; to this mean, unless it is told of another. */
#define INTERVAL_BEFORE_US (512 * 1024)
/* The mean of the gaps that the JVM draws now. */
static _Atomic(uint64_t) interval_told;
/* The mean of a thread's first gap, if it was drawn before the JVM reported the thread. */
static uint64_t interval_at_first;
/* The mean of the gap that the thread is in. */
static _Thread_local uint64_t interval_of_gap;
/* Objects so far; each stands for an address of its own, so many bytes from the last one's. */
static _Atomic(uint64_t) objects;
#define ADDRESS_STEP 8
static _Atomic(uint64_t) collections;
static uint64_t gc_begin_ns;
static _Thread_local bool thread_is_named;
/* Each stack is held against the JVM's, and the profile tells how many differ. */
static bool is_checking;
/* How those that the JVM was asked for had been walked. */
enum { STACKS_DIFFER = JVM_NOT_WALKED + 1, WAYS };
static _Atomic(uint64_t) stacks[WAYS];

static void name_thread(environment jni, void *thread)
{
    struct thread_info info = {0};
    if (CALL(jvmti, GET_THREAD_INFO, (environment, void *, struct thread_info *), jvmti, thread, &info) != 0)
        return;
    if (info.name != NULL)
        thread_is_named = hooks->thread_name(info.name) == ALLOCSAMPLE_OK;
    jvm_give_back(info.name);
    CALL(jni, JNI_DELETE_LOCAL_REF, (environment, void *), jni, info.group);
    CALL(jni, JNI_DELETE_LOCAL_REF, (environment, void *), jni, info.loader);
}

/* ---- events ---- */

/* To the JVM, 0 means every object. */
static int32_t jvm_interval(uint64_t bytes)
{
    return bytes == 1 ? 0 : bytes > INT32_MAX ? INT32_MAX : (int32_t)bytes;
}

/* The interval as the JVM accepts it. */
static uint64_t possible(uint64_t bytes)
{
    return bytes > INT32_MAX ? INT32_MAX : bytes;
}

/* Under which interval the object was drawn for which the JVM calls now. The thread's next gap is drawn already, before the
 * call; if another interval is asked for, it holds from the thread's gap after that one on. (Another thread that tells the JVM
 * between this one's draw and its call has this one take the new interval for the old, once.) */
static uint64_t interval_of_sample(const allocsample_counters *asked)
{
    uint64_t drawn_at = interval_of_gap == 0 ? interval_at_first : interval_of_gap;
    uint64_t told = atomic_load_explicit(&interval_told, memory_order_relaxed);
    interval_of_gap = told;
    uint64_t next = possible(asked->interval);
    if (UNLIKELY(next != told && next != 0) &&
        atomic_compare_exchange_strong_explicit(&interval_told, &told, next, memory_order_relaxed, memory_order_relaxed))
        CALL(jvmti, SET_HEAP_SAMPLING_INTERVAL, (environment, int32_t), jvmti, jvm_interval(next));
    return drawn_at;
}

static void mark(const char *text)
{
    uint64_t now = hooks->now_ns();
    hooks->marker(heap, text, now, now);
}

/* The JVM runs Java code. */
static void begin_to_watch(environment jni)
{
    shim_mute();
    if (!jvm_deaths_begin(hooks, heap, jvmti, jni))
        mark("the JVM refused a thread that looks for dead objects: no object counts as live");
    shim_unmute();
}

static void begin_to_walk(environment jni)
{
    shim_mute();
    jvm_collections_begin();
    jvm_collections_tell_range(hooks, heap);
    jvm_native_begin(jni);
    jvm_stack_begin(jvmti, jni);
    jvm_gap_begin(jvmti, jni);
    shim_unmute();
}

/* The main thread has drawn its gap before it was told of an interval. */
static void begin_gap(environment jni)
{
    uint64_t told = atomic_load_explicit(&interval_told, memory_order_relaxed);
    if (jvm_gap_redraw(jni, told, 0))
        interval_of_gap = told;
}

static void on_vm_init(environment env, environment jni, void *thread)
{
    (void)env;
    begin_to_watch(jni);
    begin_to_walk(jni);
    begin_gap(jni);
    jvm_buffer_begin(jni, thread);
}

/* The JVM's walker for native code refuses to work unless somebody hears of this. */
static void on_class_load(environment env, environment jni, void *thread, void *class)
{
    (void)env;
    (void)jni;
    (void)thread;
    (void)class;
}

static void on_class_prepare(environment env, environment jni, void *thread, void *class)
{
    (void)env;
    (void)thread;
    jvm_stack_has_new_class();
    shim_mute();
    jvm_native_has_class(class);
    jvm_name_places(jni);
    shim_unmute();
}

static void on_thread_start(environment env, environment jni, void *thread)
{
    (void)env;
    (void)thread;
    interval_of_gap = atomic_load_explicit(&interval_told, memory_order_relaxed);
    jvm_gap_draw_first(jni, interval_of_gap);
}

static size_t ask_for_stack(environment jni, struct frame *found, allocsample_frame *frames)
{
    int32_t count = 0;
    if (CALL(jvmti, GET_STACK_TRACE, (environment, void *, int32_t, int32_t, struct frame *, int32_t *), jvmti, NULL, 0,
             DEPTH, found, &count) != 0)
        return 0;
    jvm_describe(jni, found, frames, count);
    return (size_t)count;
}

/* Asks the JVM after our own walk, which found `count` of the `frames`. */
static COLD size_t ask_after_walk(environment jni, enum jvm_walked walked, allocsample_frame *frames, size_t count)
{
    struct frame found[DEPTH];
    allocsample_frame asked[DEPTH];
    size_t asked_count = ask_for_stack(jni, found, asked);
    if (walked == JVM_HAS_NEW_CODE)
        jvm_stack_learn(jni, found, asked, asked_count);
    bool is_wrong = walked == JVM_WALKED &&
                    (count != asked_count || memcmp(frames, asked, count * sizeof *frames) != 0);
    atomic_fetch_add_explicit(&stacks[is_wrong ? STACKS_DIFFER : walked], 1, memory_order_relaxed);
    if (is_wrong && !is_checking) {
        jvm_stack_is_wrong();
        mark("Java's stacks are read by the JVM from here on: our own walk found another");
    }
    memcpy(frames, asked, asked_count * sizeof *frames);
    return asked_count;
}

/* The frames of the calling thread, by our own walk where it is possible. */
static size_t stack_of_thread(environment jni, allocsample_frame *frames)
{
    size_t count;
    enum jvm_walked walked = jvm_stack_walk(jni, frames, DEPTH, &count);
    if (LIKELY(walked == JVM_WALKED && !is_checking && !jvm_stack_is_to_be_checked()))
        return count;
    return ask_after_walk(jni, walked, frames, count);
}

/* The result of `check`. */
static void tell_of_stacks(void)
{
    char text[160];
    snprintf(text, sizeof text, "Java's stacks: %ju walked as the JVM does, %ju otherwise, %ju of new code, %ju left to it",
             (uintmax_t)stacks[JVM_WALKED], (uintmax_t)stacks[STACKS_DIFFER], (uintmax_t)stacks[JVM_HAS_NEW_CODE],
             (uintmax_t)stacks[JVM_NOT_WALKED]);
    mark(text);
}

static void on_sampled_object(environment env, environment jni, void *thread, void *object, void *class, int64_t size)
{
    (void)env;
    allocsample_frame frames[DEPTH];
    allocsample_counters asked = {.size = sizeof asked};
    if (jvm_gap_goes_on(jni))
        return;
    hooks->counters(heap, &asked);
    uint64_t interval = interval_of_sample(&asked);
    (void)jvm_gap_redraw(jni, interval_of_gap, (uint64_t)size);
    if (UNLIKELY(jvm_buffer_is_beginning()))
        return;
    /* The JVM goes on drawing. Its walk is most of what a sample costs. */
    if (!asked.is_on) {
        hooks->sampled_at(heap, 0, 0, 0, NULL, 0, 0);
        return;
    }
    /* The JVM's allocations for our questions are not the program's. */
    shim_mute();
    jvm_name_places(jni);
    size_t count = stack_of_thread(jni, frames);
    uint32_t type = jvm_type(jni, class, frames, count);
    shim_unmute();
    if (!thread_is_named)
        name_thread(jni, thread);
    uint64_t address = (atomic_fetch_add_explicit(&objects, 1, memory_order_relaxed) + 1) * ADDRESS_STEP;
    allocsample_id sample = hooks->sampled_at(heap, address, (uint64_t)size, type, frames, count, interval);
    if (sample == ALLOCSAMPLE_NO_SAMPLE)
        return;
    shim_mute();
    bool is_watched = jvm_deaths_watch(jni, object, sample);
    shim_unmute();
    if (!is_watched)
        hooks->died(heap, &sample, 1);
}

static void on_gc_start(environment env)
{
    (void)env;
    gc_begin_ns = hooks->now_ns();
    jvm_collections_pause_begins(gc_begin_ns);
}

/* The last moment at which names can be asked for. */
static void on_vm_death(environment env, environment jni)
{
    (void)env;
    /* A thread that comes in now may not return. */
    atomic_store(&state, ENDED);
    jvm_native_end();
    if (is_checking)
        tell_of_stacks();
    shim_mute();
    jvm_name_places(jni);
    jvm_deaths_at_exit(jni);
    shim_unmute();
}

static void on_gc_finish(environment env)
{
    (void)env;
    struct jvm_pause pause = jvm_collections_pause_ends();
    uint64_t examined_ns = pause.kind == ALLOCSAMPLE_MAJOR ? pause.since_ns : 0;
    uint64_t forced_ns = jvm_deaths_requested_since();
    if (forced_ns != 0 && pause.kind != ALLOCSAMPLE_MAJOR)
        pause = (struct jvm_pause){ALLOCSAMPLE_MAJOR, forced_ns};
    uint64_t looked_until[] = {ALLOCSAMPLE_LOOKED_UNTIL, pause.since_ns};
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = pause.kind,
        .id = atomic_fetch_add_explicit(&collections, 1, memory_order_relaxed) + 1,
        .begin_ns = gc_begin_ns,
        .end_ns = hooks->now_ns(),
        .statistics = pause.kind == ALLOCSAMPLE_MAJOR,
        .values = looked_until,
    };
    hooks->gc(heap, &gc);
    jvm_deaths_collected(pause.kind, examined_ns);
}

/* ---- start ---- */

static bool register_heap(void)
{
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_COLLECTED,
        .name = "java",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WALK_IN_FREE | ALLOCSAMPLE_CODE_IS_NO_MODULE |
                 ALLOCSAMPLE_ENDS_BY_ID,
        .walk = jvm_native_walk,
        .collect = jvm_deaths_want_collection,
    };
    heap = hooks->heap_register(&description);
    return heap != NULL;
}

static int change_capabilities(int change, const unsigned *bits, size_t count)
{
    unsigned char capabilities[16] = {0};
    for (size_t i = 0; i < count; i++)
        capabilities[bits[i] / 8] |= (unsigned char)(1u << bits[i] % 8);
    return CALL(jvmti, change, (environment, void *), jvmti, capabilities);
}

/* Only one agent can have the JVM's sampler. Without it native memory still has Java's frames. */
static bool take_sampler(void)
{
    static const unsigned sampler[] = {CAN_SAMPLE};
    return change_capabilities(ADD_CAPABILITIES, sampler, 1) == 0;
}

static void leave_sampler(void)
{
    static const unsigned sampler[] = {CAN_SAMPLE};
    change_capabilities(RELINQUISH_CAPABILITIES, sampler, 1);
}

static void switch_events(bool on)
{
    static const int events[] = {VM_INIT,       VM_DEATH, THREAD_START, CLASS_LOAD,
                                 CLASS_PREPARE, GC_START, GC_FINISH,    SAMPLED_OBJECT_ALLOC};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        CALL(jvmti, SET_EVENT_NOTIFICATION_MODE, (environment, int, int, void *), jvmti, on, FIRST_EVENT + events[i], NULL);
}

/* Once: what is made stays, as threads may be in a callback at any time. */
static bool prepare(environment vm)
{
    static const unsigned wanted[] = {CAN_GET_SOURCE, CAN_GET_LINES, CAN_TELL_GC};
    static void *const callbacks[EVENTS] = {
        [VM_INIT] = (void *)on_vm_init,
        [VM_DEATH] = (void *)on_vm_death,
        [CLASS_LOAD] = (void *)on_class_load,
        [CLASS_PREPARE] = (void *)on_class_prepare,
        [THREAD_START] = (void *)on_thread_start,
        [GC_START] = (void *)on_gc_start,
        [GC_FINISH] = (void *)on_gc_finish,
        [SAMPLED_OBJECT_ALLOC] = (void *)on_sampled_object,
    };
    static bool is_prepared;
    void *env = NULL;
    if (is_prepared)
        return true;
    if (CALL(vm, VM_GET_ENV, (environment, void **, int32_t), vm, &env, JVMTI_VERSION_11) != 0)
        return false;
    jvmti = env;
    if (change_capabilities(ADD_CAPABILITIES, wanted, sizeof wanted / sizeof wanted[0]) != 0 || !register_heap() ||
        !jvm_names_prepare(hooks, heap, jvmti))
        return false;
    jvm_native_prepare(vm, jvmti);
    is_prepared = CALL(jvmti, SET_EVENT_CALLBACKS, (environment, void *const *, int32_t), jvmti, callbacks,
                       (int32_t)sizeof callbacks) == 0;
    return is_prepared;
}

/* The JVM runs if `jni` is not NULL. */
static bool listen(environment jni)
{
    allocsample_counters counters = {.size = sizeof counters};
    /* To the JVM, 0 means every object. */
    if (hooks->counters(heap, &counters) != ALLOCSAMPLE_OK || counters.interval == 0)
        return false;
    interval_told = possible(counters.interval);
    interval_at_first = jni != NULL ? INTERVAL_BEFORE_US : interval_told;
    if (!take_sampler())
        mark("another agent samples Java's objects: they are not shown");
    CALL(jvmti, SET_HEAP_SAMPLING_INTERVAL, (environment, int32_t), jvmti, jvm_interval(interval_told));
    if (jni != NULL)
        begin_to_watch(jni);
    switch_events(true);
    if (jni != NULL)
        begin_to_walk(jni);
    return true;
}

/* The JVM goes on whatever happens here: a profile without its heap is better than no program. `jni`: see `listen`. */
static void begin(environment vm, environment jni)
{
    uint32_t left = LEFT;
    if (!atomic_compare_exchange_strong(&state, &left, JOINING))
        return; /* it may be loaded again */
    /* After a detach there are none; callbacks of before go on with those that they have. */
    const allocsample_hooks *found = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    bool is_joined = false;
    if (found != NULL) {
        hooks = found;
        is_joined = prepare(vm) && listen(jni);
    }
    atomic_store(&state, is_joined ? JOINED : LEFT);
}

/* ---- a process that is attached to ---- */

/* The JVM of the process, NULL if there is none that is ready. */
static environment running_vm(void)
{
    /* It is loaded by the launcher, in no scope that we see. */
    void *library = dlopen("libjvm.so", RTLD_LAZY | RTLD_NOLOAD);
    int32_t (*created)(environment *, int32_t, int32_t *);
    environment vm = NULL;
    int32_t count = 0;
    if (library == NULL)
        return NULL;
    *(void **)&created = dlsym(library, "JNI_GetCreatedJavaVMs");
    if (created == NULL || created(&vm, 1, &count) != 0 || count < 1)
        vm = NULL;
    dlclose(library);
    return vm;
}

/* Makes the calling thread one of Java's, as the JVM answers no other. NULL: it refuses. */
static environment enter(environment vm)
{
    struct {
        int32_t version;
        const char *name;
        void *group;
    } thread = {JNI_VERSION_1_6, "allocsample", NULL};
    void *jni = NULL;
    if (CALL(vm, VM_ATTACH_CURRENT_THREAD_AS_DAEMON, (environment, void **, void *), vm, &jni, &thread) != 0)
        return NULL;
    return jni;
}

static void leave(environment vm)
{
    CALL(vm, VM_DETACH_CURRENT_THREAD, (environment), vm);
}

void jvm_attach(void)
{
    environment vm = atomic_load(&state) == ENDED ? NULL : running_vm();
    environment jni = vm == NULL ? NULL : enter(vm);
    if (jni == NULL)
        return;
    if (heap != NULL)
        resume_heap(hooks, heap);
    begin(vm, jni);
    leave(vm);
}

/* What the JVM drew for us, it draws no more. Callbacks that have begun go on. */
void jvm_detach(void)
{
    uint32_t joined = JOINED;
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    jvm_native_end();
    environment vm = atomic_load(&state) == JOINED ? running_vm() : NULL;
    environment jni = vm == NULL ? NULL : enter(vm);
    if (jni == NULL)
        return;
    if (atomic_compare_exchange_strong(&state, &joined, JOINING)) {
        switch_events(false);
        jvm_deaths_end();
        CALL(jvmti, SET_HEAP_SAMPLING_INTERVAL, (environment, int32_t), jvmti, INTERVAL_BEFORE_US);
        atomic_store_explicit(&interval_told, INTERVAL_BEFORE_US, memory_order_relaxed);
        leave_sampler();
        atomic_store(&state, LEFT);
    }
    leave(vm);
}

/* What was asked for once the JVM reports to us. */
static void obey(const struct jvm_options *options)
{
    if (atomic_load(&state) == JOINED && options->interval_bytes > 0 &&
        hooks->process_control(ALLOCSAMPLE_SET_INTERVAL, options->interval_bytes) != ALLOCSAMPLE_OK)
        mark("the interval that the agent was loaded with was refused");
}

EXPORT int32_t Agent_OnLoad(environment vm, char *text, void *reserved)
{
    struct jvm_options options;
    (void)reserved;
    bool are_known = jvm_read_options(text, &options);
    is_checking = options.is_checking;
    begin(vm, NULL);
    obey(&options);
    if (!are_known && atomic_load(&state) == JOINED)
        mark("the agent does not know all options that it was loaded with (known: check, interval=SIZE)");
    return 0; /* otherwise the JVM would end */
}

EXPORT int32_t Agent_OnAttach(environment vm, char *text, void *reserved)
{
    struct jvm_options options;
    (void)reserved;
    void *jni = NULL;
    if (!jvm_read_options(text, &options))
        return JVM_UNKNOWN_OPTION;
    is_checking = options.is_checking;
    if (CALL(vm, VM_GET_ENV, (environment, void **, int32_t), vm, &jni, JNI_VERSION_1_6) == 0)
        begin(vm, jni);
    obey(&options);
    return 0;
}
