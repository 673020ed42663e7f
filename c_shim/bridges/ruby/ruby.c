/* Ruby's methods and lines in the stacks of malloc's blocks, and its collections on the agent's time line.
 *
 * Only public functions are called. Frames come from rb_profile_frames, and names from the iseqs that it returns: none of
 * this allocates, and all of it is about the calling thread, whose frames stay as they are while it is here. Functions of C
 * are left out: what they allocate is charged to the line of Ruby that called them.
 *
 * What YJIT compiles is outside of all modules and keeps no frame pointers: the native stack ends there, and Ruby's frames
 * are the rest.
 *
 * A thread has frames while it holds its Ractor's lock and no collection is under way; then nobody moves or frees what the
 * frames refer to. ruby_thread_has_gvl_p also returns 1 on a thread that starts and waits for the lock. Ruby 3.3 and later
 * have set up the thread's frames by then. Before 3.3 rb_profile_frames would fault on a thread without an execution context,
 * so the variable ruby_current_ec is read first, which those versions export.
 *
 * Ruby has events for its collections, but before 3.3 it leaves its fast path of allocation with any of them on: 6 % in a
 * program of strings. Instead there is one hidden object, which each collection marks by a function of ours. It is made by a postponed
 * job, which Ruby runs on its main thread where any code may run, and never from within an allocation.
 *
 * Objects in slots of Ruby's heap are sampled on request: objects.c. */
#define _GNU_SOURCE
#include "ruby.h"
#include "kit/names.h"
#include "kit/resume.h"
#include "kit/symbols.h"
#include "kit/thread_pointer.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

typedef ruby_value value;

/* Frames that are asked for at most. */
#define DEPTH 512
enum { TYPE_STRING = 5 };
/* Below it are nil, true, false, and no addresses. */
#define FIRST_ADDRESS 4096
/* A symbol. The reason of a major collection is one, that of a minor one is nil. */
enum { SYMBOL_MASK = 0xff, SYMBOL_MARK = 0x0c };

/* Instead of a job's handle: there are too many jobs. */
#define NO_HANDLE UINT_MAX
/* A thread's static thread-local memory is this close to its thread pointer. What dlopen adds later is allocated elsewhere. */
#define STATIC_MEMORY (64 << 10)

enum { STATISTIC_LIVE_SLOTS = 1 };

/* Public functions of libruby, all of them in its headers. */
static struct {
    int (*frames)(int start, int limit, value *frames, int *lines);
    value (*path)(value frame);
    value (*label)(value frame);
    value (*first_line)(value frame);
    char *(*text)(volatile value *string);
    int (*has_lock)(void);
    int (*during_gc)(void);
    value (*protect)(value (*function)(value), value argument, int *state);
    value (*error)(void);
    void (*set_error)(value error);
    value (*wrap)(value class, void *data, const struct ruby_data_type *type);
    void (*register_address)(value *);
    void (*before_exit)(void (*function)(value), value argument);
    void (*at_exit)(void (*function)(void *));
    const int *api_version;
    value (*latest_gc)(value key);
    size_t (*gc_statistic)(value key);
    value (*intern)(const char *name);
    value (*symbol)(value id);
    void (*collect)(void);
    size_t (*gc_count)(void);
    /* The first exists up to Ruby 4.0, the other two from 3.3 on. */
    int (*register_job)(unsigned flags, void (*job)(void *), void *data);
    unsigned (*prepare_job)(unsigned flags, void (*job)(void *), void *data);
    void (*trigger_job)(unsigned handle);
} ruby;

static const allocsample_hooks *hooks;
static allocsample_heap *heap; /* has the walker */
/* The heap of the objects: the same one if they were asked for when it was made. NULL: they never were, or cannot be sampled. */
static allocsample_heap *object_heap;
static struct names functions;
static const value *object_class; /* rb_cObject: 0 until the interpreter stands */
/* Before Ruby 3.3: where a thread keeps its execution context, from its thread pointer; NULL there: the thread is none of
 * Ruby's. 0: Ruby looks for itself. */
static ptrdiff_t context_offset;
static _Atomic(bool) is_left; /* the process was detached from */
static _Atomic(bool) is_over; /* the interpreter takes itself down: a thread may have no execution context any more */
static _Atomic(bool) is_asked;
static _Atomic(bool) is_wanted; /* a collection */
static _Atomic(bool) wants_objects;
static _Atomic(bool) is_switch_due; /* whether objects are sampled is to change */

/* ---- frames ---- */

const char *ruby_text(volatile value string)
{
    if (string < FIRST_ADDRESS || string % 8 != 0 || (*(const value *)string & RUBY_TYPE_MASK) != TYPE_STRING)
        return NULL;
    return ruby.text(&string);
}

static uint32_t number_of(value frame)
{
    const char *file = ruby_text(ruby.path(frame)), *label = ruby_text(ruby.label(frame));
    if (file == NULL || label == NULL)
        return 0;
    /* A small integer, with its mark shifted out. */
    uint32_t first_line = (uint32_t)(ruby.first_line(frame) >> 1);
    return names_function(&functions, hooks, heap, label, file, first_line);
}

static void watch_collections(void *unused);
static void tell_collection(void *unused);
static void collect(void *unused);
static void switch_objects(void *unused);

static bool has_context(void)
{
    return context_offset == 0 || *(void *const *)(thread_pointer() + context_offset) != NULL;
}

/* Whether the calling thread runs Ruby, and its frames can be read. */
static bool runs_ruby(void)
{
    return *object_class != 0 && !atomic_load_explicit(&is_over, memory_order_relaxed) && has_context() && ruby.has_lock() != 0 && ruby.during_gc() == 0;
}

/* Ruby will call the function on its main thread, where any code may run. False: too many jobs wait. */
static bool request_job(void (*job)(void *))
{
    if (ruby.trigger_job == NULL)
        return ruby.register_job(0, job, NULL) != 0;
    unsigned handle = ruby.prepare_job(0, job, NULL); /* that of before, if there is one */
    if (handle == NO_HANDLE)
        return false;
    ruby.trigger_job(handle);
    return true;
}

static void request_job_once(_Atomic(bool) *is_due, bool due, void (*job)(void *))
{
    if (__builtin_expect(atomic_load_explicit(is_due, memory_order_relaxed) == due, 0) &&
        atomic_exchange_explicit(is_due, !due, memory_order_relaxed) == due && !request_job(job))
        atomic_store_explicit(is_due, due, memory_order_relaxed); /* at the next sample */
}

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    value found[DEPTH];
    int lines[DEPTH];
    if (atomic_load_explicit(&is_left, memory_order_relaxed) || !runs_ruby())
        return 0;
    int depth = ruby.frames(0, capacity < DEPTH ? (int)capacity : DEPTH, found, lines);
    if (depth <= 0)
        return 0; /* nor may anything else be asked: there may be no execution context */
    request_job_once(&is_asked, false, watch_collections);
    request_job_once(&is_wanted, true, collect);
    if (object_heap != NULL)
        ruby_objects_look_at_program();
    if (!ruby_objects_are_on() || ruby_objects_are_swept())
        tell_collection(NULL);
    size_t count = 0;
    for (int i = 0; i < depth; i++) {
        uint32_t number = number_of(found[i]);
        if (number != 0)
            frames[count++] = (allocsample_frame){.function = number, .line = lines[i] > 0 ? (uint32_t)lines[i] : 0};
    }
    /* Without a function the interpreter is being made, and its own objects are no program's. */
    if (count > 0)
        request_job_once(&is_switch_due, true, switch_objects);
    return count;
}

/* ---- collections ---- */

/* The last one, until its time is known. Changed with Ruby's lock held. */
static struct {
    _Atomic(uint64_t) begin_ns; /* 0: none, or taken by whoever tells of it */
    uint64_t count;
    uint32_t kind;
    size_t time_before_ms;
    value major_by, marked_slots_key, time_key, object;
    bool counts_slots;
} collection;

/* Only numbers are asked for that stay small. Ruby makes an object of a large one, which nobody may do in a collection: of
 * heap_live_slots, a difference of counters, if the difference is negative (Ruby 4.1 with ZJIT, whose objects it does not count). */

/* The time that all collections took so far; counted since Ruby 3.1. */
static size_t time_ms(void)
{
    return collection.time_key == 0 ? 0 : ruby.gc_statistic(collection.time_key);
}

static void tell_collection(void *unused)
{
    (void)unused;
    uint64_t begin_ns = atomic_exchange_explicit(&collection.begin_ns, 0, memory_order_acquire);
    if (begin_ns == 0)
        return;
    /* While the next collection marks, the count is its own. */
    bool has_slots = collection.counts_slots && ruby.during_gc() == 0;
    uint64_t values[] = {STATISTIC_LIVE_SLOTS, has_slots ? ruby.gc_statistic(collection.marked_slots_key) : 0};
    size_t time = time_ms();
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = collection.kind,
        .id = ++collection.count,
        .begin_ns = begin_ns,
        .end_ns = begin_ns + (time - collection.time_before_ms) * 1000000,
        .statistics = has_slots,
        .values = values,
    };
    collection.time_before_ms = time;
    hooks->gc(ruby_objects_are_on() ? object_heap : heap, &gc);
}

/* Inside the collector, where nothing may be allocated. Others who ask what an object refers to call it too. */
static void on_mark(void *unused)
{
    (void)unused;
    if (ruby.during_gc() == 0 || atomic_load_explicit(&is_left, memory_order_relaxed))
        return;
    tell_collection(NULL);
    if (object_heap != NULL)
        ruby_objects_on_mark();
    collection.time_before_ms = time_ms();
    bool is_major = (ruby.latest_gc(collection.major_by) & SYMBOL_MASK) == SYMBOL_MARK;
    collection.kind = is_major ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MINOR;
    atomic_store_explicit(&collection.begin_ns, hooks->now_ns(), memory_order_release);
}

static const struct ruby_data_type collection_type = {.name = "allocsample", .mark = on_mark};

/* Among the program's own blocks of at_exit. */
static void tell_last_collection(value unused)
{
    (void)unused;
    tell_collection(NULL);
}

/* Behind all of Ruby. */
static void end(void *unused)
{
    (void)unused;
    atomic_store_explicit(&is_over, true, memory_order_relaxed);
}

/* It raises if the collector is one that has no such count (Ruby's own is not the only one since 3.4). */
static value ask_for_slots(value nothing)
{
    ruby.gc_statistic(collection.marked_slots_key);
    return nothing;
}

static bool counts_slots(void)
{
    value error = ruby.error();
    int has_raised = 0;
    ruby.protect(ask_for_slots, 0, &has_raised);
    if (has_raised != 0)
        ruby.set_error(error);
    return has_raised == 0;
}

/* On the main thread, where any code may run. */
static void watch_collections(void *unused)
{
    (void)unused;
    collection.major_by = ruby.symbol(ruby.intern("major_by"));
    collection.marked_slots_key = ruby.symbol(ruby.intern("heap_marked_slots"));
    collection.time_key = ruby_is_since(3, 1) ? ruby.symbol(ruby.intern("time")) : 0;
    /* The first question makes the names of the answers, which the collector could not. */
    ruby.latest_gc(collection.major_by);
    collection.time_before_ms = time_ms();
    collection.counts_slots = counts_slots();
    ruby.register_address(&collection.object);
    collection.object = ruby.wrap(0, &collection, &collection_type);
    ruby.before_exit(tell_last_collection, 0);
    ruby.at_exit(end);
}

/* On the main thread, where any code may run. A full collection, whose sweep gives the blocks of dead objects back at once.
 * Nothing happens where the program has switched its collector off (GC.disable). */
static void collect(void *unused)
{
    (void)unused;
    size_t before = ruby.gc_count();
    ruby.collect();
    tell_collection(NULL);
    int32_t status = ruby.gc_count() != before ? ALLOCSAMPLE_OK : ALLOCSAMPLE_OFF;
    hooks->collected(heap, status);
    if (object_heap != NULL && object_heap != heap)
        hooks->collected(object_heap, status);
}

static int32_t want_collection(void *user)
{
    (void)user;
    atomic_store_explicit(&is_wanted, true, memory_order_relaxed);
    return ALLOCSAMPLE_OK;
}

/* ---- objects ---- */

/* On the main thread, where any code may run. */
static void switch_objects(void *unused)
{
    (void)unused;
    ruby_objects_switch(atomic_load_explicit(&wants_objects, memory_order_relaxed));
}

/* On a thread of Ruby's. */
static void request_switch(void)
{
    atomic_store_explicit(&is_switch_due, true, memory_order_relaxed);
    request_job_once(&is_switch_due, true, switch_objects);
}

/* Before they are sampled or are not from now on. From Ruby 3.3 on any thread may ask for a job. Otherwise the next sample does. */
static void want_objects(bool wanted)
{
    atomic_store_explicit(&wants_objects, wanted, memory_order_relaxed);
    if (!wanted)
        ruby_objects_pause();
    atomic_store_explicit(&is_switch_due, true, memory_order_relaxed);
    if (ruby.trigger_job != NULL && *object_class != 0 && !atomic_load_explicit(&is_over, memory_order_relaxed))
        request_job_once(&is_switch_due, true, switch_objects);
}

/* ---- start ---- */

static bool find_functions(void)
{
    static const struct symbol symbols[] = {
        {&ruby.frames, "rb_profile_frames"},
        {&ruby.path, "rb_profile_frame_path"},
        {&ruby.label, "rb_profile_frame_label"},
        {&ruby.first_line, "rb_profile_frame_first_lineno"},
        {&ruby.text, "rb_string_value_ptr"},
        {&ruby.has_lock, "ruby_thread_has_gvl_p"},
        {&ruby.during_gc, "rb_during_gc"},
        {&ruby.protect, "rb_protect"},
        {&ruby.error, "rb_errinfo"},
        {&ruby.set_error, "rb_set_errinfo"},
        {&ruby.wrap, "rb_data_typed_object_wrap"},
        {&ruby.register_address, "rb_gc_register_address"},
        {&ruby.before_exit, "rb_set_end_proc"},
        {&ruby.at_exit, "ruby_vm_at_exit"},
        {&ruby.api_version, "ruby_api_version"},
        {&ruby.latest_gc, "rb_gc_latest_gc_info"},
        {&ruby.gc_statistic, "rb_gc_stat"},
        {&ruby.intern, "rb_intern"},
        {&ruby.symbol, "rb_id2sym"},
        {&ruby.collect, "rb_gc"},
        {&ruby.gc_count, "rb_gc_count"},
        {&object_class, "rb_cObject"},
    };
    return symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "ruby");
}

static bool find_jobs(void)
{
    static const struct symbol current[] = {
        {&ruby.prepare_job, "rb_postponed_job_preregister"},
        {&ruby.trigger_job, "rb_postponed_job_trigger"},
    };
    static const struct symbol former[] = {{&ruby.register_job, "rb_postponed_job_register_one"}};
    return symbols_find(current, 2, NULL) || symbols_find(former, 1, NULL);
}

bool ruby_is_since(int major, int minor)
{
    return ruby.api_version[0] > major || (ruby.api_version[0] == major && ruby.api_version[1] >= minor);
}

/* False: Ruby could not be asked for frames without a fault. */
static bool find_context(void)
{
    if (ruby_is_since(3, 3))
        return true; /* it looks for itself */
    /* Of this thread. If the library was loaded with the program, it is at the same place in every thread. */
    const char *context = dlsym(RTLD_DEFAULT, "ruby_current_ec");
    if (context == NULL)
        return false;
    context_offset = context - thread_pointer();
    return context_offset > -STATIC_MEMORY && context_offset < STATIC_MEMORY;
}

static bool find_interpreter(void)
{
    if (!find_functions())
        return false;
    bool has_jobs = find_jobs();
    if (has_jobs && find_context())
        return true;
    shim_services.decline("ruby", has_jobs ? "ruby_current_ec" : "rb_postponed_job_trigger", "is missing");
    return false;
}

static bool can_sample_objects(void)
{
    static const char least[] = "3.1 or later is needed for objects in slots";
    bool can = ruby_is_since(3, 1) && ruby_objects_find();
    if (!can)
        shim_services.decline("ruby objects", "Ruby", least);
    return can;
}

/* `with_objects`: those in slots are samples of this heap. */
static allocsample_heap *register_heap(bool with_objects, allocsample_walk walker)
{
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = with_objects ? ALLOCSAMPLE_COLLECTED : ALLOCSAMPLE_TRACED,
        .name = "ruby",
        .flags = with_objects ? ALLOCSAMPLE_ENDS_BY_ID : 0,
        .walk = walker,
        .collect = want_collection,
    };
    if (walker != NULL)
        description.flags |= ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE | ALLOCSAMPLE_CODE_IS_NO_MODULE;
    allocsample_heap *registered = hooks->heap_register(&description);
    if (registered != NULL)
        hooks->define_statistic(registered, STATISTIC_LIVE_SLOTS, "live slots", "objects");
    return registered;
}

static void make_object_heap(void)
{
    static bool is_tried;
    if (is_tried || object_heap != NULL)
        return;
    is_tried = true; /* it would find nothing else */
    if (!can_sample_objects())
        return;
    /* A heap that has none of its objects in the profile is not collected. */
    allocsample_heap *registered = heap != NULL ? register_heap(true, NULL) : (heap = register_heap(true, walk));
    if (registered != NULL && ruby_objects_prepare(hooks, registered, request_switch))
        object_heap = registered;
}

static bool make_heap(void)
{
    uintptr_t start, end;
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !names_make(&functions))
        return false;
    if (shim_services.is_asked_for(BRIDGE_OBJECTS))
        make_object_heap();
    if (heap == NULL)
        heap = register_heap(false, walk);
    if (heap == NULL)
        return false;
    void *code;
    memcpy(&code, &ruby.frames, sizeof code);
    if (symbols_code_of(code, &start, &end))
        hooks->interpreter_range(heap, start, end);
    return true;
}

static void join(void)
{
    if (find_interpreter() && make_heap() && object_heap != NULL)
        want_objects(true);
}

static void attach(void)
{
    static bool is_tried;
    if (dlsym(RTLD_DEFAULT, "rb_profile_frames") == NULL)
        return; /* most processes that are attached to end here */
    if (heap == NULL && (is_tried || !find_interpreter() || !make_heap())) {
        is_tried = true; /* it would find nothing else */
        return;
    }
    bool with_objects = shim_services.is_asked_for(BRIDGE_OBJECTS);
    if (with_objects)
        make_object_heap();
    resume_heap(hooks, heap);
    if (object_heap != NULL && object_heap != heap)
        resume_heap(hooks, object_heap);
    atomic_store_explicit(&is_left, false, memory_order_relaxed);
    if (object_heap != NULL && with_objects)
        want_objects(true);
}

static void detach(void)
{
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    if (object_heap != NULL && object_heap != heap)
        hooks->control(object_heap, ALLOCSAMPLE_STOP, 0);
    if (object_heap != NULL)
        want_objects(false);
    atomic_store_explicit(&is_left, true, memory_order_relaxed);
}

static void after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
    ruby_objects_after_fork_in_child();
    atomic_store_explicit(&collection.begin_ns, 0, memory_order_relaxed);
}

const struct bridge bridge_ruby = {
    .name = "ruby",
    .runtime_symbol = "rb_profile_frames",
    .join = join,
    .attach = attach,
    .detach = detach,
    .after_fork_in_child = after_fork_in_child,
};
