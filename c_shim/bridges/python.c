/* CPython's small objects (up to 512 bytes), which come from its own arenas and never pass malloc, as a heap of the hook
 * ABI. Larger ones are malloc's, and are counted there.
 *
 * The allocators of the object and memory domains are wrapped before `main`, while nobody uses them, or at an attach, while
 * all threads may. An object that is no sample costs a subtraction (countdown.h), and its free the same test as in malloc. */
#define _GNU_SOURCE
#include "bridges.h"
#include "countdown.h"
#include "python.h"
#include "symbols.h"

#include <dlfcn.h>
#include <pthread.h>

/* Larger requests go on to malloc (CPython's SMALL_REQUEST_THRESHOLD). */
#define SMALL 512
/* Threads at a time; objects of others are not sampled, and not counted either. */
#define THREADS 4096

/* PyMemAllocatorEx: CPython's public interface. */
struct allocator {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

enum domain { DOMAIN_RAW = 0, DOMAIN_MEM = 1, DOMAIN_OBJ = 2 };

/* Zero until the thread's first object. */
static _Thread_local struct countdown this_thread;

static struct {
    _Atomic(bool) taken;
    allocsample_nursery nursery;
} nurseries[THREADS];

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static pthread_key_t thread_key;
static struct allocator next[3];
static void (*get_allocator)(int, struct allocator *);
static void (*set_allocator)(int, struct allocator *);

static void leave(void *nursery)
{
    hooks->nursery_end(heap, nursery, countdown_free(&this_thread));
    this_thread = (struct countdown){0};
    for (size_t i = 0; i < THREADS; i++) {
        if (&nurseries[i].nursery == nursery)
            atomic_store_explicit(&nurseries[i].taken, false, memory_order_release);
    }
}

static void join(void)
{
    allocsample_nursery *nursery = NULL;
    for (size_t i = 0; i < THREADS && nursery == NULL; i++) {
        bool taken = atomic_load_explicit(&nurseries[i].taken, memory_order_relaxed);
        if (!taken &&
            atomic_compare_exchange_strong_explicit(&nurseries[i].taken, &taken, true, memory_order_acquire,
                                                    memory_order_relaxed))
            nursery = &nurseries[i].nursery;
    }
    if (nursery != NULL)
        pthread_setspecific(thread_key, nursery);
    countdown_begin(&this_thread, hooks, heap, nursery);
}

/* An object of `size` bytes, whose charge borrowed, is there, or NULL for one that is not. */
static void passed_limit(void *object, size_t size)
{
    countdown_give_back(&this_thread, size);
    if (object == NULL)
        return;
    if (this_thread.limit == 0)
        join();
    if (countdown_take(&this_thread, size))
        return;
    python_gc_watch();
    countdown_tell(&this_thread, hooks, heap, object, size, 0);
}

COLD static void *malloc_at_limit(const struct allocator *under, size_t size)
{
    void *object = under->malloc(under->context, size);
    passed_limit(object, size);
    return object;
}

static void *python_malloc(void *context, size_t size)
{
    const struct allocator *under = context;
    if (size <= SMALL && countdown_charge(&this_thread, size))
        return malloc_at_limit(under, size);
    return under->malloc(under->context, size);
}

COLD static void *calloc_at_limit(const struct allocator *under, size_t count, size_t size)
{
    void *object = under->calloc(under->context, count, size);
    passed_limit(object, count * size);
    return object;
}

static void *python_calloc(void *context, size_t count, size_t size)
{
    const struct allocator *under = context;
    bool is_small = count == 0 || size <= SMALL / count;
    if (is_small && countdown_charge(&this_thread, count * size))
        return calloc_at_limit(under, count, size);
    return under->calloc(under->context, count, size);
}

COLD static void *realloc_of_sampled(const struct allocator *under, void *old, size_t size, bool is_at_limit)
{
    void *object = under->realloc(under->context, old, size);
    if (object != NULL)
        hooks->freed(heap, (uintptr_t)old);
    if (is_at_limit)
        passed_limit(object, size);
    return object;
}

/* A free and an allocation of the new size, as realloc is everywhere. Told afterwards, when it is known to have worked:
 * no other thread can get the old block meanwhile, since both domains are used under the interpreter's lock only. */
static void *python_realloc(void *context, void *old, size_t size)
{
    const struct allocator *under = context;
    bool is_at_limit = size <= SMALL && countdown_charge(&this_thread, size);
    if (UNLIKELY(is_at_limit) || shim_may_be_sampled(old))
        return realloc_of_sampled(under, old, size, is_at_limit);
    return under->realloc(under->context, old, size);
}

COLD static void free_of_sampled(const struct allocator *under, void *object)
{
    hooks->freed(heap, (uintptr_t)object);
    under->free(under->context, object);
}

static void python_free(void *context, void *object)
{
    const struct allocator *under = context;
    if (shim_may_be_sampled(object))
        free_of_sampled(under, object);
    else
        under->free(under->context, object);
}

/* In place of pymalloc while threads call it. Its context is NULL, and so is ours: a thread that reads the new function with
 * the old context, or the old one with the new, calls what it should. */
static void *late_malloc(void *unused, size_t size)
{
    (void)unused;
    return python_malloc(&next[DOMAIN_OBJ], size);
}

static void *late_calloc(void *unused, size_t count, size_t size)
{
    (void)unused;
    return python_calloc(&next[DOMAIN_OBJ], count, size);
}

static void *late_realloc(void *unused, void *old, size_t size)
{
    (void)unused;
    return python_realloc(&next[DOMAIN_OBJ], old, size);
}

static void late_free(void *unused, void *object)
{
    (void)unused;
    python_free(&next[DOMAIN_OBJ], object);
}

static void *symbol(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Between pointers to objects and to functions through memory, which is what POSIX promises for dlsym. */
#define FIND(SLOT, NAME) (*(void **)&(SLOT) = symbol(NAME))

/* False: this process is no CPython, or one that we know nothing of. */
static bool find_interpreter(struct python_symbols *symbols)
{
    FIND(set_allocator, "PyMem_SetAllocator");
    if (set_allocator == NULL)
        return false; /* most processes end here */
    FIND(get_allocator, "PyMem_GetAllocator");
    FIND(symbols->version, "Py_GetVersion");
    FIND(symbols->thread_state, "PyGILState_GetThisThreadState");
    FIND(symbols->line_of, "PyCode_Addr2Line");
    symbols->code_type = symbol("PyCode_Type");
    symbols->eval_loop = symbol("_PyEval_EvalFrameDefault");
    /* Without the interpreter's lock there are other structures and other rules. */
    bool is_free_threaded = symbol("_Py_MergeZeroLocalRefcount") != NULL;
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    return get_allocator != NULL && hooks != NULL && !is_free_threaded;
}

static _Atomic(bool) is_left; /* by a detach */

static size_t walk(void *user, allocsample_frame *frames, size_t capacity)
{
    return atomic_load_explicit(&is_left, memory_order_relaxed) ? 0 : python_frames_walk(user, frames, capacity);
}

/* The heap with its frames and collections; false: there can be none. */
static bool make_heap(const struct python_symbols *symbols)
{
    bool has_frames = python_frames_prepare(symbols, hooks);
    /* A frame of no module that called the loop is a trampoline of -X perf. */
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_MALLOC,
        .name = "python",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_LOOP_HAS_THUNKS,
        .walk = has_frames ? walk : NULL,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL || pthread_key_create(&thread_key, leave) != 0)
        return false;
    python_frames_belong_to(heap);
    if (has_frames)
        python_gc_prepare(hooks, heap);
    uintptr_t start, end;
    if (has_frames && symbols_function_of(symbols->eval_loop, &start, &end))
        hooks->interpreter_range(heap, start, end);
    return true;
}

void python_install(void)
{
    struct python_symbols symbols;
    if (!find_interpreter(&symbols))
        return;
    for (int domain = DOMAIN_RAW; domain <= DOMAIN_OBJ; domain++)
        get_allocator(domain, &next[domain]);
    bool has_pymalloc = next[DOMAIN_OBJ].malloc != next[DOMAIN_RAW].malloc; /* otherwise all is malloc's */
    if (!make_heap(&symbols) || !has_pymalloc)
        return;
    for (int domain = DOMAIN_MEM; domain <= DOMAIN_OBJ; domain++) {
        struct allocator wrapped = {&next[domain], python_malloc, python_calloc, python_realloc, python_free};
        set_allocator(domain, &wrapped);
    }
}

/* ---- attach and detach ---- */

/* Takes the place of pymalloc where nothing else has: not of debug hooks, of tracemalloc, or of malloc. */
static void wrap_late(void)
{
    struct allocator wrapped = {NULL, late_malloc, late_calloc, late_realloc, late_free};
    struct allocator now[3];
    for (int domain = DOMAIN_RAW; domain <= DOMAIN_OBJ; domain++)
        get_allocator(domain, &now[domain]);
    bool is_plain = now[DOMAIN_OBJ].context == NULL && now[DOMAIN_MEM].context == NULL &&
                    now[DOMAIN_OBJ].malloc == now[DOMAIN_MEM].malloc && now[DOMAIN_OBJ].free == now[DOMAIN_MEM].free &&
                    now[DOMAIN_OBJ].malloc != now[DOMAIN_RAW].malloc;
    if (!is_plain || now[DOMAIN_OBJ].malloc == late_malloc)
        return;
    next[DOMAIN_OBJ] = now[DOMAIN_OBJ];
    for (int domain = DOMAIN_MEM; domain <= DOMAIN_OBJ; domain++)
        set_allocator(domain, &wrapped);
}

void python_attach(void)
{
    struct python_symbols symbols;
    allocsample_status status = {.size = sizeof status};
    if (heap == NULL && (!find_interpreter(&symbols) || !make_heap(&symbols)))
        return;
    /* After a detach the heap is that of before. */
    allocsample_counters counters = {.size = sizeof counters};
    hooks->counters(heap, &counters);
    if (hooks->process_status(&status) == ALLOCSAMPLE_OK && status.interval != 0 && status.interval != counters.interval)
        hooks->control(heap, ALLOCSAMPLE_SET_INTERVAL, status.interval);
    hooks->control(heap, ALLOCSAMPLE_START, 0);
    atomic_store_explicit(&is_left, false, memory_order_relaxed);
    wrap_late();
}

void python_detach(void)
{
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store_explicit(&is_left, true, memory_order_relaxed);
    for (int domain = DOMAIN_MEM; domain <= DOMAIN_OBJ; domain++) {
        struct allocator now;
        get_allocator(domain, &now);
        /* Whoever came after us calls us: there we stay, idle. */
        if (now.malloc == late_malloc)
            set_allocator(domain, &next[DOMAIN_OBJ]);
    }
}
