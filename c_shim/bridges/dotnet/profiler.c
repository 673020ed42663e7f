/* .NET's heap as a heap of the hook ABI, by CoreCLR's profiling interface (.NET 7 and later).
 *
 * Before .NET 10, and at an interval below the runtime's own, the runtime calls back for each object, and we count down its
 * bytes. It does that only for a profiler that was there when it started. Otherwise samples come by events (draws.c).
 *
 * A callback for an object comes on the thread that allocates, where no collection can happen until it returns. */
#define _GNU_SOURCE
#include "dotnet.h"
#include "kit/countdown_threads.h"
#include "kit/resume.h"

#include <errno.h>
#include <string.h>

enum { STATISTIC_HEAP = 1 };

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static clr_object info;
static struct countdown_threads threads;
static _Atomic(bool) is_running;

/* How samples come. Chosen once. */
static enum { BY_OBJECTS, BY_SAMPLES, BY_TICKS } way;

/* ---- objects that we draw ---- */

/* Zero until the thread's first object. */
static _Thread_local struct countdown this_thread;

/* The stack that this thread has found. */
static _Thread_local struct {
    const allocsample_frame *frames;
    size_t count;
} found;

/* Called inside `alloc`. */
static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    size_t count = found.count < capacity ? found.count : capacity;
    for (size_t i = 0; i < count; i++)
        frames[i] = found.frames[i];
    return count;
}

/* The object passes the limit. */
static COLD void tell(uintptr_t object, size_t size, uintptr_t class)
{
    allocsample_frame frames[DOTNET_DEPTH];
    int before = errno;
    /* The runtime's allocations for our questions are not the program's. */
    shim_mute();
    found.count = dotnet_stack(frames);
    uint32_t type = dotnet_type(class);
    dotnet_ranges_find(object);
    shim_unmute();
    found.frames = frames;
    struct watch *watch = dotnet_watch_take();
    allocsample_id id = countdown_tell(&this_thread, hooks, heap, dotnet_watch_key(watch), size, type);
    found.frames = NULL;
    found.count = 0;
    if (id == ALLOCSAMPLE_NO_SAMPLE)
        dotnet_watch_give_back(watch);
    else
        dotnet_watch_begin(watch, object);
    errno = before;
}

static clr_result on_object(clr_object self, uintptr_t object, uintptr_t class)
{
    size_t size = 0;
    (void)self;
    if (UNLIKELY(!atomic_load_explicit(&is_running, memory_order_relaxed)) ||
        CLR(info, INFO_OBJECT_SIZE_2, (clr_object, uintptr_t, size_t *), object, &size) < 0)
        return CLR_OK;
    size = dotnet_rounded(size);
    if (way == BY_TICKS) {
        dotnet_draw_large(object, size, class);
        return CLR_OK;
    }
    if (UNLIKELY(this_thread.limit == 0))
        countdown_join(&threads, &this_thread);
    if (UNLIKELY(!countdown_take(&this_thread, size)))
        tell(object, size, class);
    return CLR_OK;
}

/* ---- collections ---- */

/* Those that have started. One of all objects may run beside the program, and others of young objects meanwhile. */
static struct collection {
    uint32_t count; /* by the runtime's count; 0: none */
    uint32_t type;
    uint32_t generation; /* the oldest that was collected, if it has ended */
    uint64_t begin_ns, end_ns; /* the end is 0 while it is under way */
} under_way[4];

/* Whether a thread is reporting a collection. Other threads do not wait for it, because it may be waiting for the collection that
 * they report. That collection then has no record, and its deaths are reported after the next one. */
static _Atomic(bool) is_reporting;

/* With the size of the heap in bytes; 0: unknown. */
static void tell_collection(const struct collection *collection, uint64_t heap_bytes)
{
    uint64_t values[4];
    uint32_t statistics = 0;
    bool is_major = collection->generation >= 2;
    if (heap_bytes != 0) {
        values[2 * statistics] = STATISTIC_HEAP;
        values[2 * statistics++ + 1] = heap_bytes;
    }
    if (is_major) {
        values[2 * statistics] = ALLOCSAMPLE_LOOKED_UNTIL;
        values[2 * statistics++ + 1] = collection->begin_ns;
    }
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = is_major ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MINOR,
        .id = collection->count,
        /* For how long it stopped the program is not known. */
        .begin_ns = collection->type == COLLECTION_IN_BACKGROUND ? collection->end_ns : collection->begin_ns,
        .end_ns = collection->end_ns,
        .statistics = statistics,
        .values = values,
    };
    hooks->gc(heap, &gc);
}

/* The runtime reports the size of the heap right after the end of a collection. */
static void tell_ended_collections(uint64_t heap_bytes)
{
    for (size_t i = 0; i < sizeof under_way / sizeof under_way[0]; i++) {
        if (under_way[i].count == 0 || under_way[i].end_ns == 0)
            continue;
        tell_collection(&under_way[i], heap_bytes);
        under_way[i].count = 0;
    }
}

static void begin_collection(const uint8_t *data, size_t bytes)
{
    uint32_t words[4]; /* its number, its oldest generation, a reason, its type */
    if (bytes < sizeof words)
        return;
    memcpy(words, data, sizeof words);
    if (atomic_exchange_explicit(&is_reporting, true, memory_order_acquire))
        return;
    tell_ended_collections(0);
    struct collection *place = under_way;
    while (place->count != 0 && place != &under_way[sizeof under_way / sizeof under_way[0] - 1])
        place++;
    *place = (struct collection){.count = words[0], .type = words[3], .begin_ns = hooks->now_ns()};
    atomic_store_explicit(&is_reporting, false, memory_order_release);
}

/* Threads still stand, unless the collection ran beside them. */
static void end_collection(const uint8_t *data, size_t bytes)
{
    uint32_t words[2]; /* its number, its oldest generation */
    if (bytes < sizeof words)
        return;
    memcpy(words, data, sizeof words);
    if (atomic_exchange_explicit(&is_reporting, true, memory_order_acquire))
        return;
    shim_mute();
    dotnet_watch_after_collection(words[1]);
    shim_unmute();
    for (size_t i = 0; i < sizeof under_way / sizeof under_way[0]; i++) {
        if (under_way[i].count == 0 || under_way[i].count != words[0])
            continue;
        under_way[i].generation = words[1];
        under_way[i].end_ns = hooks->now_ns();
    }
    atomic_store_explicit(&is_reporting, false, memory_order_release);
}

/* The event: of every generation its size and the bytes that were promoted into it (8 bytes each), from the youngest to that of
 * large objects; other figures (30 bytes); and of pinned objects the same two. */
static void end_with_sizes(const uint8_t *data, size_t bytes)
{
    enum { GENERATIONS = 4, OTHERS = 30 };
    uint64_t sum = 0;
    for (size_t i = 0; i <= GENERATIONS; i++) {
        uint64_t size;
        size_t at = i * 2 * sizeof size + (i == GENERATIONS ? OTHERS : 0);
        if (bytes < at + sizeof size)
            break;
        memcpy(&size, data + at, sizeof size);
        sum += size;
    }
    if (atomic_exchange_explicit(&is_reporting, true, memory_order_acquire))
        return;
    tell_ended_collections(sum);
    atomic_store_explicit(&is_reporting, false, memory_order_release);
}

/* ---- events ---- */

static const uint16_t provider_name[] = u"Microsoft-Windows-DotNETRuntime";

/* Whether events come from the runtime itself: a session also has some of others. */
static bool is_of_runtime(uintptr_t provider)
{
    static _Atomic(uintptr_t) known;
    uint16_t name[128] = {0};
    uint32_t length = 0;
    if (LIKELY(atomic_load_explicit(&known, memory_order_relaxed) == provider))
        return true;
    if (CLR(info, INFO_PROVIDER, (clr_object, uintptr_t, uint32_t, uint32_t *, uint16_t *), provider,
            sizeof name / sizeof name[0], &length, name) < 0 ||
        memcmp(name, provider_name, sizeof provider_name) != 0)
        return false;
    atomic_store_explicit(&known, provider, memory_order_relaxed);
    return true;
}

static clr_result on_event(clr_object self, uintptr_t provider, uint32_t event, uint32_t version, uint32_t metadata_bytes,
                           const void *metadata, uint32_t bytes, const uint8_t *data)
{
    int before = errno;
    (void)self;
    (void)version;
    (void)metadata_bytes;
    (void)metadata;
    if (!atomic_load_explicit(&is_running, memory_order_relaxed) || !is_of_runtime(provider))
        return CLR_OK;
    if (event == EVENT_SAMPLED)
        dotnet_draw_sampled(data, bytes);
    else if (event == EVENT_TICK)
        dotnet_draw_tick(data, bytes);
    else if (event == EVENT_COLLECTION_STARTED)
        begin_collection(data, bytes);
    else if (event == EVENT_COLLECTION_ENDED)
        end_collection(data, bytes);
    else if (event == EVENT_HEAP_SIZES)
        end_with_sizes(data, bytes);
    errno = before;
    return CLR_OK;
}

static uint64_t session;

static bool start_events(void)
{
    uint64_t keywords = KEYWORD_COLLECTIONS | (way == BY_SAMPLES ? KEYWORD_SAMPLING : 0);
    uint32_t level = way == BY_TICKS ? LEVEL_VERBOSE : LEVEL_INFORMATIONAL;
    struct clr_provider provider = {provider_name, keywords, level, NULL};
    return CLR(info, INFO_START_SESSION, (clr_object, uint32_t, struct clr_provider *, int32_t, uint64_t *), 1, &provider,
               0, &session) >= 0;
}

/* ---- start and end ---- */

static clr_result on_module_loaded(clr_object self, uintptr_t module, clr_result status)
{
    (void)self;
    if (status < 0)
        return CLR_OK;
    shim_mute();
    dotnet_names_has_module(module);
    shim_unmute();
    return CLR_OK;
}

static clr_result on_module_unload(clr_object self, uintptr_t module)
{
    (void)self;
    dotnet_names_lose_module(module);
    return CLR_OK;
}

/* The runtime answers no more. */
static clr_result on_shutdown(clr_object self)
{
    (void)self;
    atomic_store_explicit(&is_running, false, memory_order_relaxed);
    return CLR_OK;
}

static uint32_t major_version(void)
{
    uint16_t instance, major = 0, minor, build, fix;
    uint32_t kind, length;
    CLR(info, INFO_RUNTIME,
        (clr_object, uint16_t *, uint32_t *, uint16_t *, uint16_t *, uint16_t *, uint16_t *, uint32_t, uint32_t *, uint16_t *),
        &instance, &kind, &major, &minor, &build, &fix, 0, &length, NULL);
    return major;
}

static bool register_heap(void)
{
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_COLLECTED,
        .name = "dotnet",
        .flags = ALLOCSAMPLE_WALK_IS_WHOLE,
        .walk = walk,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL || !dotnet_names_prepare(hooks, heap, info) || !dotnet_watch_prepare(hooks, heap, info))
        return false;
    dotnet_ranges_prepare(hooks, heap, info);
    dotnet_stacks_prepare(info);
    dotnet_draws_prepare(hooks, heap, info);
    hooks->define_statistic(heap, STATISTIC_HEAP, "heap", "bytes");
    return countdown_threads_prepare(&threads, hooks, heap);
}

static bool query(clr_object object, const uint8_t *interface, clr_object *answer)
{
    return CLR(object, CLR_QUERY_INTERFACE, (clr_object, const uint8_t *, clr_object *), interface, answer) >= 0;
}

/* Whether the current interval is as long as the runtime's own, or longer. */
static bool own_interval_will_do(void)
{
    allocsample_status status = {.size = sizeof status};
    hooks->process_status(&status);
    return status.interval == 0 || status.interval >= DOTNET_OWN_INTERVAL;
}

/* `is_late`: managed code is already running, and the runtime no longer reports objects to a profiler, except large ones. */
static void choose_way(bool is_late)
{
    bool has_samples = major_version() >= 10;
    if (has_samples && (is_late || own_interval_will_do()))
        way = BY_SAMPLES;
    else
        way = is_late ? BY_TICKS : BY_OBJECTS;
}

static bool start_watching(void)
{
    uint32_t watched = WATCH_MODULES | ALLOW_SNAPSHOTS | (way == BY_OBJECTS ? WATCH_OBJECTS | ALLOW_OBJECTS : 0);
    uint32_t more = WATCH_EVENTS | (way == BY_TICKS ? WATCH_LARGE_OBJECTS : 0);
    return CLR(info, INFO_SET_EVENT_MASK_2, (clr_object, uint32_t, uint32_t), watched, more) >= 0;
}

static bool begin(clr_object runtime, bool is_late)
{
    if (query(runtime, CLR_INFO_11, &info) && !is_late)
        dotnet_launched(info);
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !query(runtime, CLR_INFO_13, &info))
        return false;
    choose_way(is_late);
    return register_heap() && start_watching() && start_events();
}

static clr_result on_initialize(clr_object self, clr_object runtime)
{
    (void)self;
    shim_mute();
    bool is_joined = begin(runtime, false);
    shim_unmute();
    atomic_store_explicit(&is_running, is_joined, memory_order_relaxed);
    return is_joined ? CLR_OK : CLR_CANCEL;
}

/* ---- a process that is attached to ---- */

/* The modules that were loaded before. */
static void find_modules(void)
{
    clr_object all = NULL;
    uintptr_t module;
    uint32_t count = 0;
    if (CLR(info, INFO_MODULES, (clr_object, clr_object *), &all) < 0)
        return;
    while (CLR(all, MODULES_NEXT, (clr_object, uint32_t, uintptr_t *, uint32_t *), 1, &module, &count) == CLR_OK && count == 1)
        dotnet_names_has_module(module);
    CLR(all, CLR_RELEASE, (clr_object));
}

static clr_result on_initialize_at_attach(clr_object self, clr_object runtime)
{
    (void)self;
    shim_mute();
    bool is_joined = begin(runtime, true);
    shim_unmute();
    return is_joined ? CLR_OK : CLR_CANCEL;
}

/* From here on the runtime answers all questions. */
static clr_result on_attached(clr_object self)
{
    (void)self;
    shim_mute();
    find_modules();
    shim_unmute();
    if (way == BY_TICKS)
        dotnet_draws_note();
    atomic_store(&is_running, true);
    return CLR_OK;
}

bool dotnet_resume(void)
{
    if (heap == NULL)
        return false;
    resume_heap(hooks, heap);
    shim_mute();
    /* Without its events, the heap has no samples, and the report says so. */
    if (session == 0)
        start_events();
    shim_unmute();
    if (way == BY_TICKS)
        dotnet_draws_note();
    return true;
}

void dotnet_detach(void)
{
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    shim_mute();
    if (atomic_load(&is_running) && session != 0)
        CLR(info, INFO_STOP_SESSION, (clr_object, uint64_t), session);
    shim_unmute();
    session = 0;
}

static clr_result query_interface(clr_object self, const uint8_t *interface, clr_object *answer)
{
    bool is_newer = memcmp(interface, CLR_CALLBACK_11, sizeof(clr_guid)) == 0;
    *answer = is_newer ? NULL : self;
    return is_newer ? CLR_NO_INTERFACE : CLR_OK;
}

static clr_result ignore(void)
{
    return CLR_OK;
}

clr_object dotnet_profiler(void)
{
    static void *functions[CALLBACKS];
    static void *const *const profiler = functions;
    for (size_t i = 0; i < CALLBACKS; i++)
        functions[i] = (void *)ignore;
    functions[CLR_QUERY_INTERFACE] = (void *)query_interface;
    functions[ON_INITIALIZE] = (void *)on_initialize;
    functions[ON_SHUTDOWN] = (void *)on_shutdown;
    functions[ON_MODULE_LOADED] = (void *)on_module_loaded;
    functions[ON_MODULE_UNLOAD] = (void *)on_module_unload;
    functions[ON_OBJECT] = (void *)on_object;
    functions[ON_INITIALIZE_AT_ATTACH] = (void *)on_initialize_at_attach;
    functions[ON_ATTACHED] = (void *)on_attached;
    functions[ON_EVENT] = (void *)on_event;
    return &profiler;
}

void dotnet_after_fork_in_child(void)
{
    dotnet_names_after_fork_in_child();
    atomic_store_explicit(&is_reporting, false, memory_order_relaxed);
}
