/* Node.js: objects of V8's heap as a heap of the hook ABI, functions of JavaScript in native stacks, collections.
 *
 * All of it goes through functions in the public headers of V8 and Node.js, which the program exports for its addons. An isolate
 * is joined by a sample of malloc on its thread, or by calls of V8's `operator new`: either may request an interrupt, and V8 calls us
 * back where its functions may be called. That works in the same way at the start and in a process that is attached to. Isolates
 * without an environment of Node.js are left alone: nobody would say when they end. */
#define _GNU_SOURCE
#include "v8.h"
#include "bridge.h"
#include "kit/lock.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Isolates (the main thread and workers) that are known at once. */
#define ISOLATES 128
/* As long as there is a reason to, each of the first occasions on a thread requests an interrupt, then one in eight: a start has few,
 * and a long one must not fill V8's queue. */
enum { FIRST_REQUESTS = 512, REQUEST_EVERY = 8 };
/* v8::GCType */
enum { SCAVENGE = 1, MINOR_MARK_COMPACT = 2, MARK_SWEEP_COMPACT = 4, INCREMENTAL_MARKING = 8 };
#define COLLECTIONS (SCAVENGE | MINOR_MARK_COMPACT | MARK_SWEEP_COMPACT | INCREMENTAL_MARKING)
/* Where v8::HeapStatistics has the bytes of the heap that are in use; what follows the first eight changes. */
#define USED_BYTES 4
/* Room for it: it has fourteen words today. */
#define STATISTICS 64

enum { STATISTIC_USED = 1 };

struct v8_functions v8;
const allocsample_hooks *v8_hooks;
allocsample_heap *v8_heap;
struct names v8_names;

/* One that was joined. All but the atomic fields belong to its thread. */
static struct isolate {
    _Atomic(void *) address; /* NULL: free */
    uint64_t attachment;     /* under which it was joined */
    uint64_t gc_begin_ns;
    struct v8_sampler sampler;
    bool is_sampling;
    bool is_to_be_read; /* before the next collection */
    struct v8_older older;
    bool is_to_be_recompiled;
    /* Up to which collection that was wanted it has begun them, and has ended them. */
    _Atomic(uint64_t) collections_begun, collections_ended;
    _Atomic(bool) can_collect; /* it lives */
} isolates[ISOLATES];
/* Held by whoever requests an interrupt on another thread, and to take an isolate off the list: it does not go meanwhile. */
static bridge_lock isolates_lock;
/* Which attach this is, and whether a detach has ended it. Both change on the thread that attaches and detaches. */
static _Atomic(uint64_t) attachment;
static _Atomic(bool) is_left;
/* The agent was there when V8 started; or, after an attach, V8's flags may be changed as well. */
static bool is_started, are_flags_open;
/* The main environment has ended: workers that end now are ended with the process. */
static _Atomic(bool) is_process_ending;
/* The program itself uses V8's sampling profiler. */
static bool is_profiler_taken;
/* The isolate whose environment has ended on this thread, and occasions with a reason to request an interrupt. */
static _Thread_local void *ended_here;
static _Thread_local uint64_t requests_here;

/* Number of collections that were requested. */
static _Atomic(uint64_t) collections_wanted;
static _Atomic(uint64_t) collections;
/* NULL, or whether V8 (before version 11) has made the key under which threads keep their isolate: before, it takes
 * somebody else's for it. */
static const volatile bool *is_key_made;

/* Runs in an interrupt of V8. */
static void visit(void *address, void *data);
static bool is_collection_wanted(const struct isolate *isolate);

/* Whether it was joined under an attachment that is over. */
static bool is_stale(const struct isolate *isolate)
{
    return UNLIKELY(atomic_load_explicit(&is_left, memory_order_relaxed) ||
                    isolate->attachment != atomic_load_explicit(&attachment, memory_order_relaxed));
}

static bool is_sampler_to_be_visited(const struct isolate *isolate)
{
    return isolate->is_sampling
               ? v8_sampler_is_behind(&isolate->sampler) || v8_sampler_lacks_names(&isolate->sampler)
               : isolate->sampler.inlined != NULL;
}

static void read_samples(struct isolate *isolate, void *address)
{
    isolate->is_to_be_read = false;
    if (isolate->is_sampling && !v8_sampler_read(&isolate->sampler, address))
        isolate->is_sampling = false;
}

/* ---- collections ---- */

static void before_gc(void *address, int type, int flags, void *data)
{
    (void)flags;
    struct isolate *isolate = data;
    /* Reading the samples allocates in V8's heap. Where incremental marking is about to start that can start it, and V8, which
     * starts it once more then, ends the process. Nothing is found dead there anyway. */
    if (type != INCREMENTAL_MARKING && !is_stale(isolate))
        read_samples(isolate, address);
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
    if (is_stale(isolate)) {
        v8.request_interrupt(address, visit, NULL);
        return;
    }
    isolate->sampler.is_busy = true;
    uint64_t statistics[STATISTICS] = {0};
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
    if (is_sampler_to_be_visited(isolate) || is_collection_wanted(isolate))
        v8.request_interrupt(address, visit, NULL);
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
    read_samples(isolate, address);
    v8_sampler_tell_waiting(&isolate->sampler);
    atomic_store_explicit(&isolate->collections_ended, wanted, memory_order_seq_cst);
    if (count_late() == 0)
        v8_hooks->collected(v8_heap, ALLOCSAMPLE_OK);
}

/* ---- isolates ---- */

/* The isolate's entry; NULL: it was not joined. */
static struct isolate *entry_of(const void *address)
{
    for (size_t i = 0; i < ISOLATES; i++)
        if (atomic_load_explicit(&isolates[i].address, memory_order_relaxed) == address)
            return &isolates[i];
    return NULL;
}

/* A new one; NULL: there are too many. */
static struct isolate *make_entry(void *address)
{
    for (size_t i = 0; i < ISOLATES; i++) {
        void *none = NULL;
        if (atomic_compare_exchange_strong_explicit(&isolates[i].address, &none, address, memory_order_relaxed,
                                                    memory_order_relaxed))
            return &isolates[i];
    }
    return NULL;
}

/* ---- what V8 says while it runs the program ---- */

/* Requests a reading of the draws so far. */
static void on_progress(void *address)
{
    struct isolate *isolate = entry_of(address);
    if (isolate == NULL)
        return;
    isolate->is_to_be_read = true;
    v8.request_interrupt(address, visit, NULL);
}

/* V8 has optimized a function, or had before the isolate was joined: the program does some work. */
static void on_optimized(void *address)
{
    struct isolate *isolate = entry_of(address);
    if (isolate == NULL)
        return;
    isolate->sampler.is_busy = true;
    if (isolate->is_sampling && v8_sampler_lacks_names(&isolate->sampler))
        v8.request_interrupt(address, visit, NULL);
}

/* ---- code from before an attach ---- */

/* V8 visits the whole heap for it, which takes about 4 ms for each MB. */
static bool is_worth_recompiling(void *address)
{
    enum { LARGE_HEAP = 64 << 20 };
    uint64_t statistics[STATISTICS] = {0};
    v8.statistics_begin(statistics);
    v8.statistics_of(address, statistics);
    return statistics[USED_BYTES] < LARGE_HEAP || shim_services.is_asked_for(BRIDGE_RECOMPILED);
}

/* In a microtask. */
static void recompile(void *address)
{
    struct isolate *isolate = entry_of(address);
    if (isolate == NULL || is_stale(isolate) || !isolate->is_to_be_recompiled)
        return;
    isolate->is_to_be_recompiled = false;
    if (!v8_recompile(address))
        return;
    v8_older_all_are_new(&isolate->older, v8_now_us());
    v8_inlined_note_none();
}

/* Takes everything of ours out of the isolate, and its entry off the list. On its thread, outside of collections. */
static void leave(struct isolate *isolate, void *address)
{
    v8_pause_watching(address);
    v8.not_before_gc(address, before_gc, isolate);
    v8.not_after_gc(address, after_gc, isolate);
    v8_sampler_end_names(&isolate->sampler); /* begun only where a scope can be had for this */
    v8_sampler_end(&isolate->sampler);
    isolate->is_sampling = false;
    v8_older_end(&isolate->older);
    if (!is_started && atomic_load_explicit(&is_left, memory_order_relaxed))
        v8_flags_change_back();
    lock_take(&isolates_lock);
    atomic_store_explicit(&isolate->address, NULL, memory_order_release);
    lock_release(&isolates_lock);
}

static bool is_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

/* Node.js has run the program, and takes the isolate down. Once for every time that it was joined. */
static void on_environment_end(void *address)
{
    struct isolate *isolate = entry_of(address);
    ended_here = address;
    if (isolate == NULL)
        return;
    if (is_main_thread())
        atomic_store_explicit(&is_process_ending, true, memory_order_relaxed);
    struct v8_scope scope;
    if (v8_scope_begin(&scope, address)) {
        if (!is_stale(isolate))
            read_samples(isolate, address);
        v8_sampler_end_names(&isolate->sampler);
        v8_scope_end(&scope, address);
    }
    if (!is_stale(isolate)) {
        /* The heap of a worker goes with it. What lives when the process ends is alive at the end. */
        if (!atomic_load_explicit(&is_process_ending, memory_order_relaxed))
            v8_sampler_free_all(&isolate->sampler);
    }
    bool is_late = is_collection_wanted(isolate);
    atomic_store_explicit(&isolate->can_collect, false, memory_order_relaxed);
    if (is_late && count_late() == 0)
        v8_hooks->collected(v8_heap, ALLOCSAMPLE_OFF);
    leave(isolate, address);
}

/* Node.js makes its environment after it has run code of its own: until then there is nothing to join. */
static struct isolate *join(void *address)
{
    void *context = v8.context_of(address);
    void *environment = context == NULL ? NULL : v8.environment_of(context);
    struct isolate *isolate = environment == NULL ? NULL : make_entry(address);
    if (isolate == NULL)
        return NULL;
    v8.at_exit(environment, on_environment_end, address);
    v8_scope_find(address);
    if (v8.detail_positions != NULL)
        v8.detail_positions(address);
    isolate->attachment = atomic_load_explicit(&attachment, memory_order_relaxed);
    bool has_older = are_flags_open && !is_started;
    if (has_older) {
        v8_flags_change();
        v8_older_begin(&isolate->older, v8_now_us());
    }
    v8.before_gc(address, before_gc, isolate, COLLECTIONS);
    v8.after_gc(address, after_gc, isolate, COLLECTIONS);
    isolate->is_sampling = !is_profiler_taken && v8_sampler_begin(&isolate->sampler, address, has_older ? &isolate->older : NULL);
    v8_watch_code(address, has_older ? &isolate->older : NULL, on_optimized);
    isolate->sampler.draws.on_progress = on_progress;
    isolate->sampler.draws.isolate = address;
    isolate->is_to_be_recompiled = has_older && isolate->is_sampling && is_worth_recompiling(address);
    if (isolate->is_to_be_recompiled)
        v8_recompile_soon(address, recompile);
    if (is_started)
        v8_inlined_note_none();
    if (isolate->is_sampling)
        v8_note_few_draws();
    uint64_t wanted = atomic_load_explicit(&collections_wanted, memory_order_relaxed);
    atomic_store_explicit(&isolate->collections_begun, wanted, memory_order_relaxed);
    atomic_store_explicit(&isolate->collections_ended, wanted, memory_order_relaxed);
    atomic_store_explicit(&isolate->can_collect, true, memory_order_relaxed);
    return isolate;
}

/* On the isolate's thread, at a place where V8 may be called, but no JavaScript. */
static void visit(void *address, void *data)
{
    (void)data;
    struct isolate *isolate = entry_of(address);
    if (isolate != NULL && is_stale(isolate)) {
        leave(isolate, address);
        isolate = NULL;
    }
    if (atomic_load_explicit(&is_left, memory_order_relaxed))
        return;
    if (isolate == NULL)
        isolate = join(address);
    else if (isolate->is_sampling)
        isolate->is_sampling = v8_sampler_follow(&isolate->sampler, address);
    if (isolate != NULL && isolate->is_to_be_read)
        read_samples(isolate, address);
    if (isolate != NULL && isolate->is_sampling && v8_sampler_lacks_names(&isolate->sampler))
        v8_sampler_name_inlined(&isolate->sampler, address);
    if (isolate != NULL && !isolate->is_sampling)
        v8_sampler_end_names(&isolate->sampler);
    if (isolate != NULL && is_collection_wanted(isolate))
        collect(isolate, address);
}

/* On any thread, in the middle of anything that has called for memory. */
static void request_visit(const struct shim_caller *caller)
{
    void *address = is_key_made != NULL && !*is_key_made ? NULL : v8.current_isolate();
    if (address == NULL || address == ended_here || atomic_load_explicit(&is_left, memory_order_relaxed))
        return;
    const struct isolate *isolate = entry_of(address);
    bool is_wanted = isolate == NULL || is_stale(isolate) || is_collection_wanted(isolate) ||
                     is_sampler_to_be_visited(isolate);
    /* An isolate that is being made forgets interrupts: it is asked again and again. */
    if (is_wanted && (requests_here++ < FIRST_REQUESTS || requests_here % REQUEST_EVERY == 0) && !v8_queue_is_changing(caller))
        v8.request_interrupt(address, visit, NULL);
}

/* Asked for frames of the machine by each sample of malloc. It has none to give: compiled code has native frames. */
static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user, (void)frames, (void)capacity;
    request_visit(shim_services.sampled_caller());
    return 0;
}

/* ---- start ---- */

static bool find_functions(void)
{
    static const struct symbol symbols[] = {
        {&v8.current_isolate, "_ZN2v87Isolate13TryGetCurrentEv"},
        {&v8.request_interrupt, "_ZN2v87Isolate16RequestInterruptEPFvPS0_PvES2_"},
        {&v8.profiler_of, "_ZN2v87Isolate15GetHeapProfilerEv"},
        {&v8.start_sampling, "_ZN2v812HeapProfiler25StartSamplingHeapProfilerEmiNS0_13SamplingFlagsE"},
        {&v8.stop_sampling, "_ZN2v812HeapProfiler24StopSamplingHeapProfilerEv"},
        {&v8.profile_of, "_ZN2v812HeapProfiler20GetAllocationProfileEv"},
        {&v8.before_gc, "_ZN2v87Isolate21AddGCPrologueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_S2_"},
        {&v8.after_gc, "_ZN2v87Isolate21AddGCEpilogueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_S2_"},
        {&v8.not_before_gc, "_ZN2v87Isolate24RemoveGCPrologueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_"},
        {&v8.not_after_gc, "_ZN2v87Isolate24RemoveGCEpilogueCallbackEPFvPS0_NS_6GCTypeENS_15GCCallbackFlagsEPvES4_"},
        {&v8.watch_code, "_ZN2v87Isolate22SetJitCodeEventHandlerENS_19JitCodeEventOptionsEPFvPKNS_12JitCodeEventEE"},
        {&v8.statistics_begin, "_ZN2v814HeapStatisticsC1Ev"},
        {&v8.statistics_of, "_ZN2v87Isolate17GetHeapStatisticsEPNS_14HeapStatisticsE"},
        {&v8.context_of, "_ZN2v87Isolate17GetCurrentContextEv"},
        {&v8.environment_of, "_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE"},
        {&v8.at_exit, "_ZN4node6AtExitEPNS_11EnvironmentEPFvPvES2_"},
        {&v8.set_flags, "_ZN2v82V818SetFlagsFromStringEPKc"},
        {&v8.version, "_ZN2v82V810GetVersionEv"},
    };
    if (!symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "javascript"))
        return false;
    v8_scope_prepare();
    v8_recompile_prepare();
    *(void **)&v8.script_id = dlsym(RTLD_DEFAULT, "_ZNK2v813UnboundScript5GetIdEv");
    *(void **)&v8.collect = dlsym(RTLD_DEFAULT, "_ZN2v87Isolate21LowMemoryNotificationEv");
    *(void **)&v8.write_utf8 = dlsym(RTLD_DEFAULT, "_ZNK2v86String9WriteUtf8EPNS_7IsolateEPciPii");
    *(void **)&v8.write_utf8_v2 = dlsym(RTLD_DEFAULT, "_ZNK2v86String11WriteUtf8V2EPNS_7IsolateEPcmiPm");
    if (v8.write_utf8 == NULL && v8.write_utf8_v2 == NULL) {
        shim_services.decline("javascript", "v8::String::WriteUtf8V2", "is missing");
        return false;
    }
    if (!v8_queue_find()) {
        shim_services.decline("javascript", "v8::Isolate::RequestInterrupt", "does not lead where it does in known versions");
        return false;
    }
    return true;
}

/* V8's CPU profiler, which names inlined functions. All or none. */
static void find_cpu_profiler(void)
{
    static const struct symbol symbols[] = {
        {&v8.cpu_profiler_new, "_ZN2v811CpuProfiler3NewEPNS_7IsolateENS_22CpuProfilingNamingModeENS_23CpuProfilingLoggingModeE"},
        {&v8.cpu_profiler_dispose, "_ZN2v811CpuProfiler7DisposeEv"},
        {&v8.set_cpu_interval, "_ZN2v811CpuProfiler19SetSamplingIntervalEi"},
        {&v8.start_cpu_profile, "_ZN2v811CpuProfiler14StartProfilingENS_5LocalINS_6StringEEEb"},
        {&v8.stop_cpu_profile, "_ZN2v811CpuProfiler13StopProfilingENS_5LocalINS_6StringEEE"},
        {&v8.detail_positions, "_ZN2v811CpuProfiler38UseDetailedSourcePositionsForProfilingEPNS_7IsolateE"},
        {&v8.cpu_samples_count, "_ZNK2v810CpuProfile15GetSamplesCountEv"},
        {&v8.cpu_sample, "_ZNK2v810CpuProfile9GetSampleEi"},
        {&v8.cpu_sample_us, "_ZNK2v810CpuProfile18GetSampleTimestampEi"},
        {&v8.delete_cpu_profile, "_ZN2v810CpuProfile6DeleteEv"},
        {&v8.cpu_node_parent, "_ZNK2v814CpuProfileNode9GetParentEv"},
        {&v8.cpu_node_script, "_ZNK2v814CpuProfileNode11GetScriptIdEv"},
        {&v8.cpu_node_line, "_ZNK2v814CpuProfileNode13GetLineNumberEv"},
        {&v8.cpu_node_column, "_ZNK2v814CpuProfileNode15GetColumnNumberEv"},
        {&v8.cpu_node_name, "_ZNK2v814CpuProfileNode18GetFunctionNameStrEv"},
        {&v8.cpu_node_file, "_ZNK2v814CpuProfileNode24GetScriptResourceNameStrEv"},
        {&v8.new_string, "_ZN2v86String11NewFromUtf8EPNS_7IsolateEPKcNS_13NewStringTypeEi"},
    };
    static const char *const collect_samples[] = {
        "_ZN2v811CpuProfiler13CollectSampleEPNS_7IsolateE",
        "_ZN2v811CpuProfiler13CollectSampleEPNS_7IsolateESt8optionalImE",
    };
    void *collect_sample = NULL;
    if (!symbols_find(symbols, sizeof symbols / sizeof symbols[0], NULL)) {
        v8.detail_positions = NULL;
        return;
    }
    for (size_t i = 0; collect_sample == NULL && i < sizeof collect_samples / sizeof collect_samples[0]; i++)
        collect_sample = dlsym(RTLD_DEFAULT, collect_samples[i]);
    *(void **)&v8.collect_sample = collect_sample;
    if (collect_sample == NULL)
        v8.detail_positions = NULL;
}

/* The heap; false: there can be none. */
static bool make_heap(void)
{
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_COLLECTED,
        .name = "javascript",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE,
        .walk = walk,
        .collect = want_collection,
    };
    if (!find_functions())
        return false;
    /* A heap that is made into a snapshot must hold nothing of ours. */
    if (v8_has_option("--build-snapshot")) {
        shim_services.decline("javascript", "--build-snapshot", "must not find anything of ours in the heap");
        return false;
    }
    v8_hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    v8_heap = v8_hooks == NULL || !names_make(&v8_names) ? NULL : v8_hooks->heap_register(&description);
    if (v8_heap == NULL)
        return false;
    is_key_made = dlsym(RTLD_DEFAULT, "_ZN2v88internal7Isolate20isolate_key_created_E");
    v8_hooks->define_statistic(v8_heap, STATISTIC_USED, "used", "bytes");
    is_profiler_taken = v8_has_option("--heap-prof");
    if (is_profiler_taken)
        shim_services.decline("javascript", "--heap-prof", "uses V8's sampling profiler");
    return true;
}

/* Where allocations are folded, V8 would charge all of them to one of the functions. A program that is asked for its CPU profile gets
 * no other samples in it. */
static void watch_draws(void)
{
    if (shim_services.is_asked_for(BRIDGE_NAMED) && !v8_inlining_is_unknown() && !v8_has_option("--cpu-prof"))
        find_cpu_profiler();
    const void *any_function;
    memcpy(&any_function, &v8.current_isolate, sizeof any_function);
    v8_draws_watch(any_function, request_visit);
}

static void join_node(void)
{
    /* A snapshot that was made with other flags is refused. */
    if (!make_heap() || v8_has_option("--snapshot-blob"))
        return;
    is_started = true;
    v8.set_flags("--interpreted-frames-native-stack");
    v8_flags_change();
    watch_draws();
    if (shim_services.is_asked_for(BRIDGE_APART))
        v8_flags_stop_inlining();
}

static void attach(void)
{
    static bool is_tried;
    if (dlsym(RTLD_DEFAULT, "_ZN2v87Isolate13TryGetCurrentEv") == NULL)
        return;
    if (v8_heap == NULL && (is_tried || !make_heap())) {
        is_tried = true; /* it would find nothing else */
        return;
    }
    if (!is_started)
        are_flags_open = shim_services.is_asked_for(BRIDGE_NAMED) && v8_flags_are_open();
    if (is_started || are_flags_open || v8_has_option("--no-turbo-allocation-folding"))
        watch_draws();
    v8_inlined_forget_marks();
    resume_heap(v8_hooks, v8_heap);
    atomic_fetch_add_explicit(&attachment, 1, memory_order_relaxed);
    atomic_store_explicit(&is_left, false, memory_order_relaxed);
}

static void detach(void)
{
    if (v8_heap == NULL)
        return;
    v8_hooks->control(v8_heap, ALLOCSAMPLE_STOP, 0);
    v8_draws_unwatch();
    atomic_store_explicit(&is_left, true, memory_order_relaxed);
    /* Every isolate stops V8's profiler when it next runs JavaScript. */
    lock_take(&isolates_lock);
    for (size_t i = 0; i < ISOLATES; i++) {
        void *address = atomic_load_explicit(&isolates[i].address, memory_order_relaxed);
        if (address != NULL)
            v8.request_interrupt(address, visit, NULL);
    }
    lock_release(&isolates_lock);
}

static void after_fork_in_child(void)
{
    names_after_fork_in_child(&v8_names);
    v8_draws_after_fork_in_child();
    lock_release(&isolates_lock);
}

const struct bridge bridge_v8 = {
    .name = "v8",
    .runtime_symbol = "_ZN2v87Isolate13TryGetCurrentEv",
    .join = join_node,
    .attach = attach,
    .detach = detach,
    .after_fork_in_child = after_fork_in_child,
};
