/* Heaps of jemallocs that are part of the program or of a library, under names of their own: polars, duckdb, pyarrow, services
 * in Rust. Nobody calls them by `malloc`, so that nothing can be interposed.
 *
 * jemalloc itself calls us: `mallctl("experimental.hooks.install")` (5.2.0 to 5.3.1) has three functions called after each
 * allocation, before each free, and after each change in place, outside of all its locks. No code is changed, and
 * `experimental.hooks.remove` undoes it. The price is that every call takes jemalloc's slow path, so the user must ask for it.
 *
 * The interface is experimental: `calibrate` makes an allocation and a free of its own, and only if the hooks report just
 * these, with the right numbers, is the heap registered. */
#define _GNU_SOURCE
#include "jemalloc.h"

#include "kit/allocator.h"
#include "kit/asking.h"
#include "kit/mallctl.h"
#include "kit/objects.h"
#include "kit/symbols.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Files that were searched. */
#define FILES 4096

/* hook_alloc_e up to 5.3.0. Later versions have another number between valloc and mallocx, which calibrate finds out. */
enum {
    ALLOC_MALLOC = 0,
    ALLOC_POSIX_MEMALIGN = 1,
    ALLOC_ALIGNED_ALLOC = 2,
    ALLOC_CALLOC = 3,
    ALLOC_MEMALIGN = 4,
    ALLOC_VALLOC = 5,
    ALLOC_MALLOCX_FIRST = 6,
    ALLOC_MALLOCX_LAST = 7,
};
enum { EXPAND_REALLOC = 0, EXPAND_RALLOCX = 1, EXPAND_XALLOCX = 2 };

/* jemalloc's hooks_t. */
struct hooks {
    void (*alloc)(void *extra, int type, void *result, uintptr_t raw_result, uintptr_t arguments[3]);
    void (*dalloc)(void *extra, int type, void *block, uintptr_t arguments[3]);
    void (*expand)(void *extra, int type, void *block, size_t old_size, size_t new_size, uintptr_t raw_result,
                   uintptr_t arguments[4]);
    void *extra;
};

/* What the hooks have reported of calibrate's own calls. */
struct calibration {
    pid_t thread; /* 0: none is under way */
    size_t size;
    int type;
    void *allocated, *freed;
};

/* One jemalloc. */
static struct instance {
    struct allocator allocator;
    mallctl_function *mallctl;
    void *installed; /* jemalloc's handle of our hooks; NULL: they are not installed */
    int mallocx;     /* its number */
    uintptr_t start; /* of its file; 0: it is gone */
    const void *headers;
    struct calibration calibration;
} instances[ALLOCATORS];
static size_t instance_count;

/* Where the next malloc is, which is no embedded one whatever its names. */
static uintptr_t next_malloc;
/* If that is a jemalloc, too: it is asked for its counts only. Its library was there before the program's first code. */
static mallctl_function *next_control;

/* ---- jemalloc calls us ---- */

static bool is_calibrating(const struct instance *instance)
{
    return UNLIKELY(instance->calibration.thread != 0) && instance->calibration.thread == (pid_t)syscall(SYS_gettid);
}

static void on_alloc(void *extra, int type, void *result, uintptr_t raw_result, uintptr_t arguments[3])
{
    (void)raw_result;
    struct instance *instance = extra;
    if (is_calibrating(instance)) {
        instance->calibration.type = type;
        instance->calibration.size = arguments[0];
        instance->calibration.allocated = result;
        return;
    }
    if (result == NULL)
        return;
    size_t size = arguments[0];
    if (type == ALLOC_CALLOC)
        size = arguments[0] * arguments[1];
    else if (type == ALLOC_POSIX_MEMALIGN)
        size = arguments[2];
    else if (type == ALLOC_ALIGNED_ALLOC || type == ALLOC_MEMALIGN || type > instance->mallocx)
        size = arguments[1];
    allocator_allocated(&instance->allocator, result, size);
}

static void on_dalloc(void *extra, int type, void *block, uintptr_t arguments[3])
{
    (void)type;
    (void)arguments;
    struct instance *instance = extra;
    if (is_calibrating(instance))
        instance->calibration.freed = block;
    else
        allocator_freed(&instance->allocator, block);
}

/* As with malloc, a block that realloc leaves in place ends, and another one begins. */
static void on_expand(void *extra, int type, void *block, size_t old_size, size_t new_size, uintptr_t raw_result,
                      uintptr_t arguments[4])
{
    (void)raw_result;
    if (type == EXPAND_XALLOCX && old_size == new_size)
        return;
    struct instance *instance = extra;
    allocator_freed(&instance->allocator, block);
    /* xallocx is asked for one size or more, and gives what it can. */
    allocator_allocated(&instance->allocator, block, type == EXPAND_XALLOCX ? new_size : arguments[1]);
}

/* ---- joining and leaving ---- */

static struct {
    size_t used;
    uintptr_t starts[FILES];
} searched;

static bool is_known(uintptr_t start)
{
    for (size_t i = 0; i < searched.used; i++)
        if (searched.starts[i] == start)
            return true;
    /* One that does not fit is searched again. */
    if (searched.used < FILES)
        searched.starts[searched.used++] = start;
    return false;
}

static void forget(uintptr_t start)
{
    for (size_t i = 0; i < searched.used; i++)
        if (searched.starts[i] == start)
            searched.starts[i--] = searched.starts[--searched.used];
}

/* jemalloc guards its list of hooks by a lock that it does not release in a forked child. */
static _Atomic(bool) is_in_jemalloc;

static bool install(struct instance *instance)
{
    struct hooks wanted = {on_alloc, on_dalloc, on_expand, instance};
    size_t bytes = sizeof instance->installed;
    atomic_store(&is_in_jemalloc, true);
    int failed =
        instance->mallctl("experimental.hooks.install", &instance->installed, &bytes, &wanted, sizeof wanted);
    atomic_store(&is_in_jemalloc, false);
    return failed == 0 && instance->installed != NULL;
}

static void remove_hooks(struct instance *instance)
{
    if (instance->installed == NULL)
        return;
    atomic_store(&is_in_jemalloc, true);
    instance->mallctl("experimental.hooks.remove", NULL, NULL, &instance->installed, sizeof instance->installed);
    atomic_store(&is_in_jemalloc, false);
    instance->installed = NULL;
}

/* Whether the hooks report one block of ours with its right size, and its free. */
static bool calibrate(struct instance *instance, const struct jemalloc_found *found)
{
    enum { SIZE = 24 };
    union {
        uintptr_t address;
        void *(*malloc)(size_t size);
        void *(*mallocx)(size_t size, int flags);
        void (*free)(void *block);
        void (*dallocx)(void *block, int flags);
        void (*sdallocx)(void *block, size_t size, int flags);
    } function[JEMALLOC_FUNCTIONS];
    for (size_t i = 0; i < JEMALLOC_FUNCTIONS; i++)
        function[i].address = found->functions[i];
    bool has_mallocx = function[JEMALLOC_MALLOCX].address != 0;
    if (!has_mallocx && function[JEMALLOC_MALLOC].address == 0)
        return false;
    struct calibration *calibration = &instance->calibration;
    *calibration = (struct calibration){.thread = (pid_t)syscall(SYS_gettid)};
    void *block = has_mallocx ? function[JEMALLOC_MALLOCX].mallocx(SIZE, 0) : function[JEMALLOC_MALLOC].malloc(SIZE);
    bool is_allocated = block != NULL && calibration->allocated == block && calibration->size == SIZE &&
                        calibration->freed == NULL;
    if (block == NULL)
        ;
    else if (function[JEMALLOC_DALLOCX].address != 0)
        function[JEMALLOC_DALLOCX].dallocx(block, 0);
    else if (function[JEMALLOC_SDALLOCX].address != 0)
        function[JEMALLOC_SDALLOCX].sdallocx(block, SIZE, 0);
    else if (function[JEMALLOC_FREE].address != 0)
        function[JEMALLOC_FREE].free(block);
    calibration->thread = 0;
    /* Without mallocx its two numbers are those of pvalloc and of realloc. */
    instance->mallocx = has_mallocx ? calibration->type : ALLOC_MALLOCX_FIRST;
    bool is_known_type = has_mallocx ? calibration->type == ALLOC_MALLOCX_FIRST || calibration->type == ALLOC_MALLOCX_LAST
                                     : calibration->type == ALLOC_MALLOC;
    return is_allocated && calibration->freed == block && is_known_type;
}

static const char jemalloc_name[] = "jemalloc";

static void join_found(const struct jemalloc_found *found)
{
    bool is_next = next_malloc >= found->start && next_malloc < found->end;
    if (is_next)
        memcpy(&next_control, &found->functions[JEMALLOC_MALLCTL], sizeof next_control);
    uintptr_t key = found->functions[JEMALLOC_MALLCTL];
    if (is_next || instance_count == ALLOCATORS || allocator_is_taken(jemalloc_name, key, key + 1))
        return;
    struct instance *instance = &instances[instance_count];
    *instance = (struct instance){.start = found->start};
    memcpy(&instance->mallctl, &found->functions[JEMALLOC_MALLCTL], sizeof instance->mallctl);
    instance->headers = objects_headers(found->start);
    instance->allocator.what = jemalloc_name;
    instance->allocator.key = key;
    if (!install(instance))
        return;
    instance_count++;
    const allocsample_hooks *hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (!calibrate(instance, found) || !allocator_register(&instance->allocator, hooks, found->file)) {
        remove_hooks(instance);
        /* Takes the mark of this thread away, which may end now. */
        calibrate(instance, found);
        return;
    }
    for (size_t i = 0; i < found->ranges; i++)
        hooks->interpreter_range(instance->allocator.registered, found->code[i].start, found->code[i].end);
    allocator_start(&instance->allocator);
}

/* A change of the hooks marks every thread that jemalloc lists, and a marked thread that ends without calling it again stays in the
 * list: the next thread that calls jemalloc crashes. So a process that runs with threads already is left alone, and hooks are never
 * removed once other threads can have called it with them. */
static bool has_begun_with_program;

/* A running process is left alone, except that a jemalloc behind malloc is asked for its counts. */
static void attach(void)
{
    const struct symbol symbol = {&next_control, "mallctl"};
    if (symbols_find(&symbol, 1, NULL) && !symbols_is_of_malloc(&next_control))
        next_control = NULL;
}

static void join(void)
{
    has_begun_with_program = true;
    next_malloc = (uintptr_t)shim_services.find_symbol("malloc");
    jemalloc_search(0, is_known, join_found);
}

static void *run(void *work)
{
    void (*function)(void);
    memcpy(&function, work, sizeof function);
    function();
    return NULL;
}

/* jemalloc lists the threads that have called it, until libc tells it that they end, by a function in jemalloc's library. So threads
 * of ours that stay, or that end past libc as that of an attach does, must not call it: the library may be gone by then. */
static void run_on_thread(void (*work)(void))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &work) == 0)
        pthread_join(thread, NULL);
}

/* One thread looks at a time. */
static const struct jemalloc_found *found_now;

static void join_found_now(void)
{
    join_found(found_now);
}

static void join_on_thread(const struct jemalloc_found *found)
{
    found_now = found;
    run_on_thread(join_found_now);
}

static bool look(uintptr_t object)
{
    if (has_begun_with_program)
        jemalloc_search(object, is_known, join_on_thread);
    return true;
}

/* ---- what it counts itself ---- */

static struct {
    struct bridge_own own[ALLOCATORS + 1];
    size_t count;
} counted;

static void count_one(const allocsample_heap *heap, mallctl_function *mallctl)
{
    struct bridge_own *own = &counted.own[counted.count];
    own->heap = heap;
    if (mallctl_count(mallctl, own->bytes))
        counted.count++;
}

static void count_all(void)
{
    counted.count = 0;
    if (next_control != NULL)
        count_one(NULL, next_control);
    for (size_t i = 0; i < instance_count; i++)
        if (instances[i].start != 0 && instances[i].allocator.registered != NULL)
            count_one(instances[i].allocator.registered, instances[i].mallctl);
}

static size_t count(struct bridge_own *own, size_t room)
{
    if ((next_control == NULL && instance_count == 0) || !asking_run(count_all))
        return 0;
    size_t used = counted.count < room ? counted.count : room;
    memcpy(own, counted.own, used * sizeof *own);
    return used;
}

/* An unloaded library's jemalloc leaves its memory mapped, but its frees can no longer be seen. */
static void after_dlclose(void)
{
    for (size_t i = 0; i < instance_count; i++) {
        struct instance *instance = &instances[i];
        struct shim_object object;
        bool is_there = instance->start == 0 || (shim_services.find_object((const void *)instance->start, &object) &&
                                                 object.headers == instance->headers);
        if (is_there)
            continue;
        forget(instance->start);
        instance->start = 0;
        instance->installed = NULL;
        allocator_unregister(&instance->allocator);
    }
}

/* Where the parent was about to change jemalloc's list of hooks, the child can never change it. Hooks that are installed work. */
static void after_fork_in_child(void)
{
    allocators_after_fork_in_child();
    asking_after_fork_in_child();
    if (!atomic_exchange(&is_in_jemalloc, false))
        return;
    for (size_t i = 0; i < instance_count; i++) {
        instances[i].installed = NULL;
        instances[i].calibration.thread = 0;
    }
}

const struct bridge bridge_jemalloc = {
    .name = "jemalloc",
    .group = BRIDGE_EMBEDDED,
    .join = join,
    .attach = attach,
    .look = look,
    .count = count,
    .after_dlclose = after_dlclose,
    .after_fork_in_child = after_fork_in_child,
};
