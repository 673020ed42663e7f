/* Deaths of sampled objects, and collections on request.
 *
 * JVMTI reports deaths by its event ObjectFree. It is not used, as JDK 26 can hang with it: one of the JVM's threads calls the
 * agent, and whoever ends the JVM, or switches this event, waits for that thread and blocks safepoints meanwhile. If a safepoint
 * was requested before, that thread waits for it, and everybody for everybody (seen at exits and detaches of JDK 25 and 26).
 *
 * Instead every sampled object has a weak reference, which holds no object alive. After a collection a thread of ours looks which of
 * them are gone. It is a JVMTI agent thread, which Java code cannot see. Nobody waits for it, and it waits for nothing but work. It
 * also collects on request, and looks for requests, since an idle JVM has no other thread that does. */
#define _GNU_SOURCE
#include "deaths.h"
#include "collections.h"
#include "kit/lock.h"
#include "kit/memory.h"
#include "layout.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    JNI_FIND_CLASS = 6,
    JNI_EXCEPTION_CLEAR = 17,
    JNI_IS_SAME_OBJECT = 24,
    JNI_NEW_OBJECT = 28,
    JNI_GET_METHOD_ID = 33,
    JNI_NEW_STRING_UTF = 167,
    JNI_NEW_WEAK_GLOBAL_REF = 226,
    JNI_DELETE_WEAK_GLOBAL_REF = 227,
    NORMAL_PRIORITY = 5
};
#define JNI(INDEX, RESULT, TYPE, ...) (((RESULT(*) TYPE)(*jni)[INDEX])(jni, __VA_ARGS__))

struct watched {
    void *reference;
    allocsample_id sample;
    uint32_t age; /* how often it was found alive, while it is young */
};
struct list {
    struct watched *all;
    size_t count, room;
};
#define LEAST_ROOM 4096
/* An object that was found alive this many times is old. Old objects are checked only after full collections and after every
 * OLD_EVERY collections, since some full collections are not recognised as such. */
#define OLD_AGE 4
#define OLD_EVERY 16

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static environment jvmti;

/* Objects that nobody has looked at yet. No thread calls the JVM while it holds the lock. */
static struct list newest;
static bridge_lock newest_lock;
/* The others. For whoever scans. */
static struct list young, old;
static unsigned scans;
/* Dead objects that are not reported yet. */
#define REPORTED_AT_ONCE 512
static allocsample_id dead[REPORTED_AT_ONCE];
static size_t dead_count;
static bridge_lock scanning;

/* The thread. Changes of its state are guarded by the lock, which Java threads take where the JVM does not wait for them. */
enum { NONE, RUNS, IS_TO_END, JVM_ENDS };
static _Atomic(uint32_t) thread_state;
static bridge_lock thread_lock;
/* Changes when there is work; a futex. */
static _Atomic(uint32_t) bell;
static _Atomic(bool) is_collected, is_fully_collected, is_wanted;
static _Atomic(uint64_t) requested_since_ns, collections, examined_until_ns;

/* ---- lists ---- */

static bool append(struct list *list, struct watched watched)
{
    if (UNLIKELY(list->count == list->room)) {
        size_t room = list->room == 0 ? LEAST_ROOM : 2 * list->room;
        struct watched *all = memory_map(room * sizeof *all);
        if (all == NULL)
            return false;
        if (list->room > 0) {
            memcpy(all, list->all, list->count * sizeof *all);
            munmap(list->all, list->room * sizeof *all);
        }
        list->all = all;
        list->room = room;
    }
    list->all[list->count++] = watched;
    return true;
}

static void forget(environment jni, struct watched watched)
{
    JNI(JNI_DELETE_WEAK_GLOBAL_REF, void, (environment, void *), watched.reference);
}

static void report_dead(void)
{
    hooks->died(heap, dead, dead_count);
    dead_count = 0;
}

/* The object is dead, or its death will not be known. */
static void release(environment jni, struct watched watched)
{
    forget(jni, watched);
    dead[dead_count++] = watched.sample;
    if (dead_count == REPORTED_AT_ONCE)
        report_dead();
}

/* JDK 11 treats the question whether a weak reference is empty as a use of its object: while the collector marks, that keeps the object
 * alive until the next marking. ZGC then frees no page that has a sample, and the program may run out of memory. In JDK 11, a weak
 * reference is the address of the pointer that the collector clears, plus WEAK_TAG, so that pointer is read instead. Later JDKs do
 * not count the question as a use, and generational ZGC does not clear to 0. */
#define WEAK_TAG 1
static bool reads_pointers;

static bool is_dead(environment jni, struct watched watched)
{
    uintptr_t reference = (uintptr_t)watched.reference;
    if (reads_pointers && (reference & WEAK_TAG) != 0)
        return atomic_load_explicit((_Atomic(uintptr_t) *)(reference - WEAK_TAG), memory_order_relaxed) == 0;
    return JNI(JNI_IS_SAME_OBJECT, uint8_t, (environment, void *, void *), watched.reference, NULL) != 0;
}

/* ---- scans ---- */

/* Takes the dead out of the list; those that are old by then go to `next`, if it is not NULL. */
static void scan_list(environment jni, struct list *list, struct list *next)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        struct watched watched = list->all[i];
        if (is_dead(jni, watched)) {
            release(jni, watched);
            continue;
        }
        watched.age += next != NULL;
        if (next == NULL || watched.age < OLD_AGE || !append(next, watched))
            list->all[kept++] = watched;
    }
    list->count = kept;
}

/* Takes what was sampled since the last scan over. */
static void take_newest(environment jni)
{
    struct list taken;
    lock_take(&newest_lock);
    taken = newest;
    newest = (struct list){0};
    lock_release(&newest_lock);
    for (size_t i = 0; i < taken.count; i++) {
        if (is_dead(jni, taken.all[i]) || !append(&young, taken.all[i]))
            release(jni, taken.all[i]);
    }
    if (taken.room > 0)
        munmap(taken.all, taken.room * sizeof *taken.all);
}

static void scan(environment jni, bool also_old)
{
    lock_take(&scanning);
    also_old |= ++scans % OLD_EVERY == 0;
    scan_list(jni, &young, &old);
    take_newest(jni);
    if (also_old)
        scan_list(jni, &old, NULL);
    report_dead();
    lock_release(&scanning);
}

static void forget_list(environment jni, struct list *list)
{
    for (size_t i = 0; i < list->count; i++)
        forget(jni, list->all[i]);
    list->count = 0;
}

static void forget_all(environment jni)
{
    lock_take(&scanning);
    take_newest(jni);
    report_dead();
    forget_list(jni, &young);
    forget_list(jni, &old);
    lock_release(&scanning);
}

bool jvm_deaths_watch(environment jni, void *object, allocsample_id sample)
{
    if (atomic_load_explicit(&thread_state, memory_order_relaxed) != RUNS)
        return false;
    void *reference = JNI(JNI_NEW_WEAK_GLOBAL_REF, void *, (environment, void *), object);
    if (reference == NULL) {
        ((void (*)(environment))(*jni)[JNI_EXCEPTION_CLEAR])(jni);
        return false;
    }
    struct watched watched = {.reference = reference, .sample = sample};
    lock_take(&newest_lock);
    bool is_watched = append(&newest, watched);
    lock_release(&newest_lock);
    if (!is_watched)
        forget(jni, watched);
    return is_watched;
}

/* ---- the thread ---- */

static void ring(void)
{
    int error = errno;
    atomic_fetch_add_explicit(&bell, 1, memory_order_release);
    syscall(SYS_futex, &bell, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    errno = error;
}

void jvm_deaths_collected(uint32_t kind, uint64_t examined_ns)
{
    if (examined_ns != 0)
        atomic_store_explicit(&examined_until_ns, examined_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&collections, 1, memory_order_relaxed);
    if (kind == ALLOCSAMPLE_MAJOR)
        atomic_store_explicit(&is_fully_collected, true, memory_order_relaxed);
    atomic_store_explicit(&is_collected, true, memory_order_relaxed);
    ring();
}

int32_t jvm_deaths_want_collection(void *user)
{
    (void)user;
    atomic_store_explicit(&is_wanted, true, memory_order_relaxed);
    ring();
    return ALLOCSAMPLE_OK;
}

uint64_t jvm_deaths_requested_since(void)
{
    return atomic_load_explicit(&requested_since_ns, memory_order_relaxed);
}

/* Shenandoah may answer as soon as the collection begins, if another one has just ended: it wakes whoever waits for that one, and
 * compares numbers that a collection gets at its beginning. So it is asked again until a marking that began later has ended. */
static bool force_collection(uint64_t since_ns)
{
    enum { ATTEMPTS = 3 };
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (CALL(jvmti, FORCE_GARBAGE_COLLECTION, (environment), jvmti) != 0)
            return false;
        if (!jvm_collections_are_concurrent() || atomic_load_explicit(&examined_until_ns, memory_order_relaxed) >= since_ns)
            break;
    }
    return true;
}

static void collect(environment jni)
{
    uint64_t before = atomic_load_explicit(&collections, memory_order_relaxed), now = hooks->now_ns();
    atomic_store_explicit(&requested_since_ns, now, memory_order_relaxed);
    bool is_done = force_collection(now);
    atomic_store_explicit(&requested_since_ns, 0, memory_order_relaxed);
    /* A JVM without a collector (Epsilon) says yes and does nothing. */
    is_done = is_done && atomic_load_explicit(&collections, memory_order_relaxed) != before;
    scan(jni, true);
    hooks->collected(heap, is_done ? ALLOCSAMPLE_OK : ALLOCSAMPLE_OFF);
}

static void work(environment jni)
{
    if (atomic_exchange_explicit(&is_wanted, false, memory_order_relaxed))
        collect(jni);
    if (atomic_exchange_explicit(&is_collected, false, memory_order_relaxed))
        scan(jni, atomic_exchange_explicit(&is_fully_collected, false, memory_order_relaxed));
}

/* Whether the thread must end. Another one can be started once this has forgotten all objects. */
static bool has_ended(environment jni)
{
    uint32_t state = atomic_load_explicit(&thread_state, memory_order_relaxed);
    if (LIKELY(state == RUNS))
        return false;
    lock_take(&thread_lock);
    state = atomic_load_explicit(&thread_state, memory_order_relaxed);
    if (state == IS_TO_END) {
        forget_all(jni);
        atomic_store_explicit(&thread_state, NONE, memory_order_relaxed);
    }
    lock_release(&thread_lock);
    return state != RUNS;
}

/* Requests of `ctl` are carried out where the program allocates, and here. The JVM's own periodic thread wakes as often. */
static const struct timespec look_again = {.tv_nsec = 50 * 1000 * 1000};

static void look_for_requests(void)
{
    /* What a request leads to is the agent's work, which it does not do for a muted thread. */
    shim_unmute();
    hooks->sampled_at(heap, 0, 0, 0, NULL, 0, 0);
    shim_mute();
}

/* The JVM has made the thread, and ends it when this returns. */
static void run(environment env, environment jni, void *argument)
{
    (void)env;
    (void)argument;
    /* The JVM's allocations for us are not the program's. */
    shim_mute();
    uint32_t heard;
    while (heard = atomic_load_explicit(&bell, memory_order_acquire), !has_ended(jni)) {
        look_for_requests();
        work(jni);
        syscall(SYS_futex, &bell, FUTEX_WAIT_PRIVATE, heard, &look_again, NULL, 0);
    }
    shim_unmute();
}

/* A java.lang.Thread that was not started, or NULL. */
static void *make_thread(environment jni)
{
    void *class = JNI(JNI_FIND_CLASS, void *, (environment, const char *), "java/lang/Thread");
    void *name = JNI(JNI_NEW_STRING_UTF, void *, (environment, const char *), "allocsample");
    void *constructor = class == NULL ? NULL
                                      : JNI(JNI_GET_METHOD_ID, void *, (environment, void *, const char *, const char *),
                                            class, "<init>", "(Ljava/lang/String;)V");
    void *thread = NULL;
    if (constructor != NULL && name != NULL)
        thread = JNI(JNI_NEW_OBJECT, void *, (environment, void *, void *, ...), class, constructor, name);
    if (thread == NULL)
        ((void (*)(environment))(*jni)[JNI_EXCEPTION_CLEAR])(jni);
    JNI(JNI_DELETE_LOCAL_REF, void, (environment, void *), name);
    JNI(JNI_DELETE_LOCAL_REF, void, (environment, void *), class);
    return thread;
}

bool jvm_deaths_begin(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, environment the_jvmti, environment jni)
{
    hooks = the_hooks;
    heap = the_heap;
    jvmti = the_jvmti;
    reads_pointers = jvm_version() == 11;
    lock_take(&thread_lock);
    bool is_new = atomic_load_explicit(&thread_state, memory_order_relaxed) == NONE;
    atomic_store_explicit(&thread_state, RUNS, memory_order_relaxed);
    lock_release(&thread_lock);
    if (!is_new)
        return true;
    void *thread = make_thread(jni);
    bool is_started = thread != NULL &&
                      CALL(jvmti, RUN_AGENT_THREAD, (environment, void *, void (*)(environment, environment, void *), void *, int32_t),
                           jvmti, thread, run, NULL, NORMAL_PRIORITY) == 0;
    if (!is_started)
        atomic_store_explicit(&thread_state, NONE, memory_order_relaxed);
    JNI(JNI_DELETE_LOCAL_REF, void, (environment, void *), thread);
    return is_started;
}

void jvm_deaths_end(void)
{
    lock_take(&thread_lock);
    if (atomic_load_explicit(&thread_state, memory_order_relaxed) == RUNS)
        atomic_store_explicit(&thread_state, IS_TO_END, memory_order_relaxed);
    lock_release(&thread_lock);
    ring();
}

void jvm_deaths_at_exit(environment jni)
{
    lock_take(&thread_lock);
    bool has_thread = atomic_load_explicit(&thread_state, memory_order_relaxed) != NONE;
    /* The JVM waits for a thread in native code for 0.3 s. */
    atomic_store_explicit(&thread_state, JVM_ENDS, memory_order_relaxed);
    lock_release(&thread_lock);
    ring();
    if (has_thread)
        scan(jni, true);
}
