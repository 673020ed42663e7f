/* Node.js: objects of V8's heap as a heap of the hook ABI, functions of JavaScript in native stacks, collections.
 *
 * All of it goes through public functions of V8 that the program exports. An isolate is joined by the first sample of malloc
 * on its thread, which asks for an interrupt: V8 calls us back where its functions may be called. Only a malloc in the
 * middle of another request may not ask: V8's queue of requests is what grows then. */
#define _GNU_SOURCE
#include "v8.h"
#include "bridge.h"
#include "kit/foreign.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Isolates (the main thread and workers) that are known at once. */
#define ISOLATES 64
/* v8::GCType */
enum { SCAVENGE = 1, MINOR_MARK_COMPACT = 2, MARK_SWEEP_COMPACT = 4, INCREMENTAL_MARKING = 8 };
#define COLLECTIONS (SCAVENGE | MINOR_MARK_COMPACT | MARK_SWEEP_COMPACT | INCREMENTAL_MARKING)
/* Where v8::HeapStatistics has the bytes of the heap that are in use; what follows the first eight changes. */
#define USED_BYTES 4

enum { STATISTIC_USED = 1 };

struct v8_functions v8;
const allocsample_hooks *v8_hooks;
allocsample_heap *v8_heap;
struct names v8_names;

static struct isolate {
    _Atomic(void *) address; /* NULL: free */
    uint64_t samples_of_malloc; /* while there is something to ask it for */
    uint64_t gc_begin_ns;
    struct v8_samplers samplers;
    bool is_begun, is_joined, is_sampling;
    /* Up to which collection that was wanted it has begun them, and has ended them. */
    _Atomic(uint64_t) collections_begun, collections_ended;
    _Atomic(bool) can_collect; /* it is joined, and lives */
} isolates[ISOLATES];
/* Number of collections that were requested. */
static _Atomic(uint64_t) collections_wanted;
static _Atomic(uint64_t) collections;
/* NULL, or whether V8 (before version 11) has made the key under which threads keep their isolate: before, it takes
 * somebody else's for it. */
static const volatile bool *is_key_made;

/* Runs in an interrupt of V8. */
static void visit(void *address, void *data);
static bool is_collection_wanted(const struct isolate *isolate);

/* ---- collections ---- */

static void before_gc(void *address, int type, int flags, void *data)
{
    (void)flags;
    struct isolate *isolate = data;
    /* Reading the samples allocates in V8's heap. Where incremental marking is about to start that can start it, and V8, which
     * starts it once more then, ends the process. Nothing is found dead there anyway. */
    if (isolate->is_sampling && type != INCREMENTAL_MARKING)
        v8_samplers_tell(&isolate->samplers, address);
    if (type == SCAVENGE)
        v8_pause_watching(address);
    isolate->gc_begin_ns = v8_hooks->now_ns();
}

static void after_gc(void *address, int type, int flags, void *data)
{
    (void)flags;
    struct isolate *isolate = data;
    uint64_t end_ns = v8_hooks->now_ns();
    if (type == SCAVENGE)
        v8_resume_watching(address);
    /* v8::HeapStatistics has fourteen words today. */
    uint64_t statistics[64] = {0};
    v8.statistics_begin(statistics);
    v8.statistics_of(address, statistics);
    uint64_t values[] = {STATISTIC_USED, statistics[USED_BYTES]};
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = (type & (SCAVENGE | MINOR_MARK_COMPACT)) != 0 ? ALLOCSAMPLE_MINOR
                : (type & MARK_SWEEP_COMPACT) != 0            ? ALLOCSAMPLE_MAJOR
                                                              : ALLOCSAMPLE_MAJOR_STEP,
        .id = atomic_fetch_add_explicit(&collections, 1, memory_order_relaxed) + 1,
        .begin_ns = isolate->gc_begin_ns,
        .end_ns = end_ns,
        .statistics = 1,
        .values = values,
    };
    v8_hooks->gc(v8_heap, &gc);
    /* A program that takes nothing from malloc hears of another interval here. */
    if ((isolate->is_sampling && v8_samplers_are_behind(&isolate->samplers)) || is_collection_wanted(isolate))
        v8.request_interrupt(address, visit, isolate);
}

/* ---- collections on request ---- */

static bool is_behind_with_collections(const struct isolate *isolate, const _Atomic(uint64_t) *done)
{
    return UNLIKELY(atomic_load_explicit(done, memory_order_relaxed) !=
                    atomic_load_explicit(&collections_wanted, memory_order_relaxed)) &&
           atomic_load_explicit(&isolate->can_collect, memory_order_relaxed);
}

static bool is_collection_wanted(const struct isolate *isolate)
{
    return is_behind_with_collections(isolate, &isolate->collections_begun);
}

/* How many isolates still have to collect. */
static size_t count_late(void)
{
    size_t count = 0;
    for (size_t i = 0; i < ISOLATES; i++)
        count += is_behind_with_collections(&isolates[i], &isolates[i].collections_ended);
    return count;
}

/* On any thread, in the middle of anything. */
static int32_t want_collection(void *user)
{
    (void)user;
    if (v8.collect == NULL)
        return ALLOCSAMPLE_OFF;
    atomic_fetch_add_explicit(&collections_wanted, 1, memory_order_relaxed);
    return count_late() > 0 ? ALLOCSAMPLE_OK : ALLOCSAMPLE_OFF;
}

/* The isolate's thread, in an interrupt. */
static COLD void collect(struct isolate *isolate, void *address)
{
    uint64_t wanted = atomic_load_explicit(&collections_wanted, memory_order_relaxed);
    /* Before: collections ask for interrupts. */
    atomic_store_explicit(&isolate->collections_begun, wanted, memory_order_relaxed);
    v8.collect(address);
    /* Else the next collection would tell which objects have died in this one. */
    if (isolate->is_sampling)
        v8_samplers_tell(&isolate->samplers, address);
    atomic_store_explicit(&isolate->collections_ended, wanted, memory_order_seq_cst);
    if (count_late() == 0)
        v8_hooks->collected(v8_heap, ALLOCSAMPLE_OK);
}

/* ---- isolates ---- */

/* Node.js has run the program, and takes the isolate down. */
static void on_environment_end(void *data)
{
    struct isolate *isolate = data;
    void *address = atomic_load_explicit(&isolate->address, memory_order_relaxed);
    if (isolate->is_sampling)
        v8_samplers_end(&isolate->samplers, address);
    isolate->is_sampling = false;
    bool is_late = is_collection_wanted(isolate);
    atomic_store_explicit(&isolate->can_collect, false, memory_order_relaxed);
    if (is_late && count_late() == 0)
        v8_hooks->collected(v8_heap, ALLOCSAMPLE_OFF);
}

static void begin(struct isolate *isolate, void *address)
{
    isolate->is_begun = true;
    v8_watch_code(address);
    v8.before_gc(address, before_gc, isolate, COLLECTIONS);
    v8.after_gc(address, after_gc, isolate, COLLECTIONS);
    isolate->is_sampling = v8_samplers_begin(&isolate->samplers, address);
}

static void join(struct isolate *isolate, void *address)
{
    struct v8_scope scope;
    if (!isolate->is_begun)
        begin(isolate, address);
    /* Node.js makes its environment after it has run code of its own. */
    v8.begin_scope(&scope, address);
    void *context = v8.context_of(address);
    void *environment = context == NULL ? NULL : v8.environment_of(context);
    if (environment != NULL) {
        v8.at_exit(environment, on_environment_end, isolate);
        isolate->is_joined = true;
        uint64_t wanted = atomic_load_explicit(&collections_wanted, memory_order_relaxed);
        atomic_store_explicit(&isolate->collections_begun, wanted, memory_order_relaxed);
        atomic_store_explicit(&isolate->collections_ended, wanted, memory_order_relaxed);
        atomic_store_explicit(&isolate->can_collect, true, memory_order_relaxed);
    }
    v8.end_scope(&scope);
}

/* On the isolate's thread, at a place where V8 may be called, but no JavaScript. */
static void visit(void *address, void *data)
{
    struct isolate *isolate = data;
    if (!isolate->is_joined)
        join(isolate, address);
    else if (isolate->is_sampling)
        v8_samplers_follow(&isolate->samplers, address);
    if (is_collection_wanted(isolate))
        collect(isolate, address);
}

/* The isolate's entry, which is made if it is new; NULL: there are too many. */
static struct isolate *entry_of(void *address)
{
    for (size_t i = 0; i < ISOLATES; i++) {
        void *other = NULL;
        if (atomic_load_explicit(&isolates[i].address, memory_order_relaxed) == address ||
            atomic_compare_exchange_strong_explicit(&isolates[i].address, &other, address, memory_order_relaxed,
                                                    memory_order_relaxed))
            return &isolates[i];
    }
    return NULL;
}

/* Code of V8 that changes its queue of requests. */
static struct {
    uintptr_t start, end;
} queue_code[2];

/* Whether malloc was called for the queue: by code of those functions, or by a function that they call. What they keep on
 * the stack below their own frames is a few words. */
static bool is_queue_changing(void)
{
    enum { WORDS = 64 };
    const struct shim_caller *caller = shim_services.sampled_caller();
    uintptr_t words[WORDS];
    struct foreign_reader reader;
    if (caller == NULL)
        return true; /* not in malloc: nothing is known */
    foreign_reader_begin(&reader, NULL);
    if (!foreign_read(&reader, caller->sp, words, sizeof words))
        return true; /* the stack ends there, or cannot be read */
    for (size_t i = 0; i <= WORDS; i++) {
        uintptr_t word = i == 0 ? caller->pc : words[i - 1];
        for (size_t j = 0; j < sizeof queue_code / sizeof queue_code[0]; j++)
            if (word - queue_code[j].start < queue_code[j].end - queue_code[j].start)
                return true;
    }
    return false;
}

/* Asked for frames of the machine by each sample of malloc. It has none to give: compiled code has native frames. */
static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user, (void)frames, (void)capacity;
    void *address = is_key_made != NULL && !*is_key_made ? NULL : v8.current_isolate();
    struct isolate *isolate = address == NULL ? NULL : entry_of(address);
    if (isolate == NULL)
        return 0;
    bool is_behind = isolate->is_sampling && v8_samplers_are_behind(&isolate->samplers);
    if (isolate->is_joined && !is_behind && !is_collection_wanted(isolate))
        return 0;
    /* An isolate that is being made forgets interrupts: it is asked again and again. */
    if (isolate->samples_of_malloc++ % 8 == 0 && !is_queue_changing())
        v8.request_interrupt(address, visit, isolate);
    return 0;
}

/* ---- start ---- */

/* Where the functions are that change the queue. V8 exports its own besides the public one, which only calls it. */
static bool find_queue_code(void)
{
    static const char *const names[] = {"_ZN2v88internal7Isolate16RequestInterruptEPFvPNS_7IsolateEPvES4_",
                                        "_ZN2v88internal7Isolate27InvokeApiInterruptCallbacksEv"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *function = dlsym(RTLD_DEFAULT, names[i]);
        if (function == NULL || !symbols_function_of(function, &queue_code[i].start, &queue_code[i].end)) {
            shim_services.decline("javascript", names[i], "is missing");
            return false;
        }
    }
    return true;
}

static bool find_functions(void)
{
    static const struct symbol more[] = {
        {&v8.make_profiler, "_ZN2v88internal12HeapProfilerC1EPNS0_4HeapE"},
        {&v8.stop_sampling, "_ZN2v812HeapProfiler24StopSamplingHeapProfilerEv"},
    };
    static const struct symbol symbols[] = {
        {&v8.current_isolate, "_ZN2v87Isolate13TryGetCurrentEv"},
        {&v8.request_interrupt, "_ZN2v87Isolate16RequestInterruptEPFvPS0_PvES2_"},
        {&v8.profiler_of, "_ZN2v87Isolate15GetHeapProfilerEv"},
        {&v8.start_sampling, "_ZN2v812HeapProfiler25StartSamplingHeapProfilerEmiNS0_13SamplingFlagsE"},
        {&v8.profile_of, "_ZN2v812HeapProfiler20GetAllocationProfileEv"},
        {&v8.before_gc, "_ZN2v87Isolate21AddGCPrologueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_S2_"},
        {&v8.after_gc, "_ZN2v87Isolate21AddGCEpilogueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_S2_"},
        {&v8.begin_scope, "_ZN2v811HandleScopeC1EPNS_7IsolateE"},
        {&v8.end_scope, "_ZN2v811HandleScopeD1Ev"},
        {&v8.write_utf8, "_ZNK2v86String9WriteUtf8EPNS_7IsolateEPciPii"},
        {&v8.watch_code, "_ZN2v87Isolate22SetJitCodeEventHandlerENS_19JitCodeEventOptionsEPFvPKNS_12JitCodeEventEE"},
        {&v8.statistics_begin, "_ZN2v814HeapStatisticsC1Ev"},
        {&v8.statistics_of, "_ZN2v87Isolate17GetHeapStatisticsEPNS_14HeapStatisticsE"},
        {&v8.context_of, "_ZN2v87Isolate17GetCurrentContextEv"},
        {&v8.environment_of, "_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE"},
        {&v8.at_exit, "_ZN4node6AtExitEPNS_11EnvironmentEPFvPvES2_"},
        {&v8.set_flags, "_ZN2v82V818SetFlagsFromStringEPKc"},
    };
    if (!symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "javascript"))
        return false;
    if (!symbols_find(more, sizeof more / sizeof more[0], NULL))
        v8.make_profiler = NULL;
    *(void **)&v8.collect = dlsym(RTLD_DEFAULT, "_ZN2v87Isolate21LowMemoryNotificationEv");
    return true;
}

static bool is_in_file(const char *path, const char *text)
{
    char bytes[4096];
    size_t length = strlen(text), kept = 0;
    bool is_found = false;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    while (file >= 0 && !is_found && (got = read(file, bytes + kept, sizeof bytes - kept)) > 0) {
        size_t filled = kept + (size_t)got;
        is_found = memmem(bytes, filled, text, length) != NULL;
        /* The end of the buffer is kept: it may be the beginning of `text`. */
        kept = filled < length ? filled : length - 1;
        memmove(bytes, bytes + filled - kept, kept);
    }
    if (file >= 0)
        close(file);
    return is_found;
}

/* Whether Node.js was given this option, by its arguments or by NODE_OPTIONS: libc has no environment yet. */
static bool has_option(const char *option)
{
    return is_in_file("/proc/self/cmdline", option) || is_in_file("/proc/self/environ", option);
}

static void join_node(void)
{
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_COLLECTED,
        .name = "javascript",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE,
        .walk = walk,
        .collect = want_collection,
    };
    /* A heap that is made into a snapshot must hold nothing of ours. */
    if (!find_functions() || !find_queue_code())
        return;
    if (has_option("--build-snapshot")) {
        shim_services.decline("javascript", "--build-snapshot", "must not find anything of ours in the heap");
        return;
    }
    v8_hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    v8_heap = v8_hooks == NULL || !names_make(&v8_names) ? NULL : v8_hooks->heap_register(&description);
    if (v8_heap == NULL)
        return;
    is_key_made = dlsym(RTLD_DEFAULT, "_ZN2v88internal7Isolate20isolate_key_created_E");
    v8_hooks->define_statistic(v8_heap, STATISTIC_USED, "used", "bytes");
    /* One that was made with other flags is refused. */
    if (!has_option("--snapshot-blob"))
        v8.set_flags("--interpreted-frames-native-stack");
}

static void after_fork_in_child(void)
{
    names_after_fork_in_child(&v8_names);
}

const struct bridge bridge_v8 = {
    .name = "v8",
    .runtime_symbol = "_ZN2v87Isolate13TryGetCurrentEv",
    .join = join_node,
    .after_fork_in_child = after_fork_in_child,
};
