/* Mono's heap as a heap of the hook ABI, by Mono's profiler interface (5.6 and later).
 *
 * The interface is a set of exported functions; what is used of them is declared here. A profiler may be made before `main`,
 * with no option on the command line. Mono then calls back for each object (its inline allocation is off). We count down its
 * bytes. Objects that were drawn have a weak handle, which the collector clears when it has found them dead.
 *
 * Methods are named by Mono's own walk of the stack, on the thread that allocates and before the agent is called: where Mono
 * stops threads by agreement, this may be the place. Nothing of ours is locked there. */
#define _GNU_SOURCE
#include "bridge.h"
#include "kit/countdown_threads.h"
#include "mono.h"
#include "kit/names.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#define DEPTH 512
/* MonoProfilerGCEvent */
enum { GC_START = 0, GC_END = 5, BEFORE_STOP = 6, WORLD_STOPS = 10, WORLD_RUNS = 9, SUSPENSION_IS_OVER = 11 };

enum { STATISTIC_HEAP = 1 };

typedef int32_t (*on_frame)(void *method, int32_t native_offset, int32_t il_offset, int32_t is_managed, void *data);

/* MonoDebugSourceLocation */
struct location {
    char *file;
    uint32_t row, column, il_offset;
};

static struct {
    void *(*create)(void *profiler);
    int32_t (*enable_allocations)(void);
    void (*on_initialized)(void *profiler, void (*callback)(void *));
    void (*on_shutdown)(void *profiler, void (*callback)(void *));
    void (*on_allocation)(void *profiler, void (*callback)(void *, void *object));
    void (*on_gc)(void *profiler, void (*callback)(void *, int event, uint32_t generation));
    void (*on_finalizing)(void *profiler, void (*callback)(void *));
    void (*wake_finalizer)(void); /* NULL: this Mono has none; deaths are told when it wakes by itself */
    void (*walk)(on_frame callback, void *data);
    void *(*domain)(void);
    struct location *(*location)(void *method, uint32_t native_offset, void *domain);
    void (*free_location)(struct location *location);
    const char *(*method_name)(void *method);
    void *(*method_class)(void *method);
    void *(*class_of)(void *object);
    void *(*type_of_class)(void *class);
    char *(*type_name)(void *type);
    void (*free)(void *memory);
    unsigned (*size)(void *object);
    int64_t (*heap_size)(void);
} mono;

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static struct names functions, types;
static struct countdown_threads threads;
static _Atomic(bool) is_running; /* Mono can walk stacks */

/* Zero until the thread's first object. */
static _Thread_local struct countdown this_thread;

/* ---- names ---- */

/* What a place in a method was found to be. A method that was freed may leave its address to another one, whose name is at
 * another place. */
static struct known {
    const void *method, *class, *name;
    uint32_t offset, number, line;
} known[1 << 13];
static _Atomic(bool) known_is_taken; /* never waited for: its holder may be stopped */

static struct known *entry_of(const void *method, uint32_t offset)
{
    uint64_t hash = ((uintptr_t)method + offset) * UINT64_C(0x9e3779b97f4a7c15) >> 32;
    return &known[hash % (sizeof known / sizeof known[0])];
}

static bool recall(struct known *place)
{
    if (atomic_exchange_explicit(&known_is_taken, true, memory_order_acquire))
        return false;
    const struct known *entry = entry_of(place->method, place->offset);
    bool is_known = entry->number != 0 && entry->method == place->method && entry->class == place->class &&
                    entry->name == place->name && entry->offset == place->offset;
    if (is_known)
        *place = *entry;
    atomic_store_explicit(&known_is_taken, false, memory_order_release);
    return is_known;
}

static void keep(const struct known *place)
{
    if (atomic_exchange_explicit(&known_is_taken, true, memory_order_acquire))
        return;
    *entry_of(place->method, place->offset) = *place;
    atomic_store_explicit(&known_is_taken, false, memory_order_release);
}

/* Into `text`, cut to its size; returns its length. */
static size_t put(char *text, size_t size, const char *part)
{
    size_t used = 0;
    for (; part[used] != 0 && used + 1 < size; used++)
        text[used] = part[used];
    text[used] = 0;
    return used;
}

static size_t put_class(char *text, size_t size, void *class)
{
    char *name = class == NULL ? NULL : mono.type_name(mono.type_of_class(class));
    size_t used = put(text, size, name == NULL ? "?" : name);
    if (name != NULL)
        mono.free(name);
    return used;
}

static void learn(void *method, struct known *place)
{
    char name[1024], *const end = name + sizeof name;
    char *next = name + put_class(name, sizeof name / 2, (void *)(uintptr_t)place->class);
    next += put(next, (size_t)(end - next), ".");
    put(next, (size_t)(end - next), place->name == NULL ? "?" : place->name);
    /* Mono knows lines where it was started with --debug. */
    struct location *location = mono.location(method, place->offset, mono.domain());
    place->line = location == NULL ? 0 : location->row;
    const char *file = location == NULL || location->file == NULL ? "" : location->file;
    place->number = names_function(&functions, hooks, heap, name, file, 0);
    if (location != NULL)
        mono.free_location(location);
    if (place->number != 0)
        keep(place);
}

/* ---- stacks ---- */

struct stack {
    size_t count;
    allocsample_frame frames[DEPTH];
};

/* The one that this thread has found. */
static _Thread_local const struct stack *found;

static int32_t put_frame(void *method, int32_t native_offset, int32_t il_offset, int32_t is_managed, void *data)
{
    struct stack *stack = data;
    (void)il_offset;
    if (method == NULL || is_managed == 0)
        return 0;
    struct known place = {.method = method,
                          .class = mono.method_class(method),
                          .name = mono.method_name(method),
                          .offset = native_offset < 0 ? 0 : (uint32_t)native_offset};
    if (!recall(&place))
        learn(method, &place);
    if (place.number != 0)
        stack->frames[stack->count++] = (allocsample_frame){.function = place.number, .line = place.line};
    return stack->count == DEPTH;
}

/* Called inside `alloc`. */
static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    size_t count = found == NULL ? 0 : found->count < capacity ? found->count : capacity;
    for (size_t i = 0; i < count; i++)
        frames[i] = found->frames[i];
    return count;
}

/* ---- objects ---- */

static uint32_t type_of(void *object)
{
    char name[512];
    bool is_new;
    put_class(name, sizeof name, mono.class_of(object));
    uint32_t number = names_number(&types, names_hash(NAMES_SEED, name), &is_new);
    if (is_new)
        hooks->define_type(heap, number, name, "");
    return number;
}

/* The object passes the limit. */
COLD static void tell(void *object, size_t size)
{
    int before = errno;
    struct stack stack;
    stack.count = 0;
    /* Mono's allocations for our questions are not the program's. */
    shim_mute();
    mono.walk(put_frame, &stack);
    uint32_t type = type_of(object);
    shim_unmute();
    struct watch *watch = mono_watch_take();
    found = &stack;
    allocsample_id id = countdown_tell(&this_thread, hooks, heap, mono_watch_key(watch), size, type);
    found = NULL;
    if (id == ALLOCSAMPLE_NO_SAMPLE) {
        mono_watch_give_back(watch);
    } else {
        shim_mute();
        mono_watch_begin(watch, object);
        shim_unmute();
    }
    errno = before;
}

static void on_allocation(void *unused, void *object)
{
    (void)unused;
    if (UNLIKELY(!atomic_load_explicit(&is_running, memory_order_relaxed)))
        return;
    /* The collector gives out multiples of 8. */
    size_t size = ((size_t)mono.size(object) + 7) & ~(size_t)7;
    if (UNLIKELY(this_thread.limit == 0))
        countdown_join(&threads, &this_thread);
    if (UNLIKELY(!countdown_take(&this_thread, size)))
        tell(object, size);
}

/* ---- collections ---- */

/* A stop of the world, which may be for something else than a collection. All its events come on the thread that collects.
 *
 * The concurrent collector marks between two stops: the first one begins a collection of everything, the second one ends it and
 * clears the weak handles. Mono counts the first. A collection that is not concurrent begins and ends in one stop. */
static _Thread_local struct {
    uint64_t begin_ns, end_ns;
    bool is_one, begins_old, ends_old;
} collection;
/* When the marking that is under way began; 0: there is none. The collector's own lock guards it. */
static _Atomic(uint64_t) marking_since_ns;
static _Atomic(uint64_t) collections;

static void tell_collection(void)
{
    uint64_t since_ns = atomic_load_explicit(&marking_since_ns, memory_order_relaxed);
    bool is_second_stop = collection.ends_old && !collection.begins_old && since_ns != 0;
    uint64_t values[] = {STATISTIC_HEAP, (uint64_t)mono.heap_size(), ALLOCSAMPLE_LOOKED_UNTIL, since_ns};
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = collection.ends_old     ? ALLOCSAMPLE_MAJOR
                : collection.begins_old ? ALLOCSAMPLE_MAJOR_STEP
                                        : ALLOCSAMPLE_MINOR,
        .id = atomic_fetch_add_explicit(&collections, 1, memory_order_relaxed) + 1,
        .begin_ns = collection.begin_ns,
        .end_ns = collection.end_ns,
        .statistics = is_second_stop ? 2 : 1,
        .values = values,
    };
    if (collection.ends_old || collection.begins_old)
        atomic_store_explicit(&marking_since_ns, collection.ends_old ? 0 : collection.begin_ns, memory_order_relaxed);
    hooks->gc(heap, &gc);
    mono_watch_ask(collection.ends_old);
    /* Mono has no such thread before. */
    if (mono.wake_finalizer != NULL && atomic_load_explicit(&is_running, memory_order_relaxed))
        mono.wake_finalizer();
}

static void on_gc(void *unused, int event, uint32_t generation)
{
    (void)unused;
    switch (event) {
    case BEFORE_STOP: /* if the finalizer's thread had no time since the last collection */
        mono_watch_tell_dead();
        break;
    case WORLD_STOPS:
        collection.begin_ns = hooks->now_ns();
        collection.is_one = collection.begins_old = collection.ends_old = false;
        break;
    case GC_START:
        collection.is_one = true;
        collection.begins_old |= generation > 0;
        break;
    case GC_END: /* alone, if it ends what an earlier stop began */
        collection.is_one = true;
        collection.ends_old |= generation > 0;
        break;
    case WORLD_RUNS:
        collection.end_ns = hooks->now_ns();
        break;
    case SUSPENSION_IS_OVER: /* and its lock free, which other threads hold while they are stopped */
        if (collection.is_one && collection.begin_ns != 0)
            tell_collection();
        collection.is_one = false;
        break;
    default:
        break;
    }
}

/* On Mono's thread for finalizers, which holds no lock, before it runs any. */
static void on_finalizing(void *unused)
{
    (void)unused;
    mono_watch_tell_dead();
}

/* ---- start ---- */

static void on_initialized(void *unused)
{
    (void)unused;
    atomic_store_explicit(&is_running, true, memory_order_relaxed);
}

static void on_shutdown(void *unused)
{
    (void)unused;
    atomic_store_explicit(&is_running, false, memory_order_relaxed);
    mono_watch_tell_dead();
}

static bool find_functions(void)
{
    static const struct symbol symbols[] = {
        {&mono.create, "mono_profiler_create"},
        {&mono.enable_allocations, "mono_profiler_enable_allocations"},
        {&mono.on_initialized, "mono_profiler_set_runtime_initialized_callback"},
        {&mono.on_shutdown, "mono_profiler_set_runtime_shutdown_begin_callback"},
        {&mono.on_allocation, "mono_profiler_set_gc_allocation_callback"},
        {&mono.on_gc, "mono_profiler_set_gc_event_callback"},
        {&mono.on_finalizing, "mono_profiler_set_gc_finalizing_callback"},
        {&mono.walk, "mono_stack_walk_no_il"},
        {&mono.domain, "mono_domain_get"},
        {&mono.location, "mono_debug_lookup_source_location"},
        {&mono.free_location, "mono_debug_free_source_location"},
        {&mono.method_name, "mono_method_get_name"},
        {&mono.method_class, "mono_method_get_class"},
        {&mono.class_of, "mono_object_get_class"},
        {&mono.type_of_class, "mono_class_get_type"},
        {&mono.type_name, "mono_type_get_name"},
        {&mono.free, "mono_free"},
        {&mono.size, "mono_object_get_size"},
        {&mono.heap_size, "mono_gc_get_heap_size"},
    };
    void *found = dlsym(RTLD_DEFAULT, "mono_gc_finalize_notify");
    memcpy(&mono.wake_finalizer, &found, sizeof found);
    return symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "mono");
}

static void join(void)
{
    if (!find_functions())
        return;
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_COLLECTED,
        .name = "mono",
        .flags = ALLOCSAMPLE_SCANS_STACKS | ALLOCSAMPLE_WALK_IS_WHOLE,
        .walk = walk,
    };
    if (hooks == NULL || !names_make(&functions) || !names_make(&types))
        return;
    heap = hooks->heap_register(&description);
    if (heap == NULL || !mono_watch_prepare(hooks, heap) || !countdown_threads_prepare(&threads, hooks, heap))
        return;
    hooks->define_statistic(heap, STATISTIC_HEAP, "heap", "bytes");
    /* False after Mono's start. */
    void *profiler = mono.enable_allocations() == 0 ? NULL : mono.create(NULL);
    if (profiler == NULL)
        return;
    mono.on_initialized(profiler, on_initialized);
    mono.on_shutdown(profiler, on_shutdown);
    mono.on_allocation(profiler, on_allocation);
    mono.on_gc(profiler, on_gc);
    mono.on_finalizing(profiler, on_finalizing);
}

static void after_fork_in_child(void)
{
    names_after_fork_in_child(&functions);
    names_after_fork_in_child(&types);
    atomic_store_explicit(&known_is_taken, false, memory_order_relaxed);
    mono_watch_after_fork_in_child();
}

const struct bridge bridge_mono = {
    .name = "mono",
    .runtime_symbol = "mono_profiler_create",
    .scanning_collector_symbol = "mono_get_root_domain",
    .join = join,
    .after_fork_in_child = after_fork_in_child,
};
