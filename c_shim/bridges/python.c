/* CPython's small objects (up to 512 bytes), which come from its own arenas and never pass malloc, as a heap of the hook
 * ABI. Larger ones are malloc's, and are counted there.
 *
 * The allocators of the object and memory domains are wrapped before `main`, while nobody uses them; but not their `free`,
 * which Python's builds have compiled into its callers for the case that nobody wraps it. An object that is no sample costs
 * a subtraction (countdown.h). One that is a sample is put where malloc's blocks are: Python's allocator hands each block
 * that is not in its arenas on to `free` and `realloc`, and those are ours. It gets there by Python's own way for objects
 * that are too large for the arenas, so that `sys.getallocatedblocks` is right. */
#define _GNU_SOURCE
#include "bridges.h"
#include "countdown.h"
#include "python.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Larger requests go on to malloc (CPython's SMALL_REQUEST_THRESHOLD). */
#define SMALL 512
#define TOO_LARGE (SMALL + 1)
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
/* While a sampled object is allocated: its size, by which the raw domain replaces the one that it is asked for. */
static _Thread_local struct {
    bool is_asked;
    size_t size;
} sampled_object;

static struct {
    _Atomic(bool) taken;
    allocsample_nursery nursery;
} nurseries[THREADS];

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static pthread_key_t thread_key;
/* Those of the object domain, which are those of the memory domain too, and those of the raw domain. */
static struct allocator next, next_raw;

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

/* The charge of an object of `size` bytes borrowed: whether the object is a sample. If not, it is charged. */
static bool is_due(size_t size)
{
    countdown_give_back(&this_thread, size);
    if (this_thread.limit == 0)
        join();
    return !countdown_take(&this_thread, size);
}

/* The raw domain is about to be asked for another size than it is to give. */
static void ask_for(size_t size)
{
    sampled_object.is_asked = true;
    sampled_object.size = size;
}

static size_t asked_size(void)
{
    sampled_object.is_asked = false;
    return sampled_object.size + (sampled_object.size == 0);
}

/* Not by the interposed malloc: the object has been charged. */
static void *raw_malloc(void *context, size_t size)
{
    if (UNLIKELY(sampled_object.is_asked) && size == TOO_LARGE)
        return shim_next.malloc(asked_size());
    return next_raw.malloc(context, size);
}

static void *raw_calloc(void *context, size_t count, size_t size)
{
    if (UNLIKELY(sampled_object.is_asked) && count == 1 && size == TOO_LARGE)
        return shim_next.calloc(1, asked_size());
    return next_raw.calloc(context, count, size);
}

/* The object that was asked for is there, or NULL for one that is not: then nothing was charged. */
static void *tell(void *object, size_t size)
{
    /* Somebody has wrapped the raw domain since, and asks it for more: what `free` will get is not this address. */
    bool has_end = !sampled_object.is_asked;
    sampled_object.is_asked = false;
    if (object == NULL)
        return NULL;
    python_gc_watch();
    countdown_tell(&this_thread, hooks, heap, (uintptr_t)object, size, 0);
    if (!has_end)
        hooks->freed(heap, (uintptr_t)object);
    return object;
}

COLD static void *malloc_at_limit(void *context, size_t size)
{
    if (!is_due(size))
        return next.malloc(context, size);
    ask_for(size);
    return tell(next.malloc(context, TOO_LARGE), size);
}

static void *python_malloc(void *context, size_t size)
{
    if (size <= SMALL && countdown_charge(&this_thread, size))
        return malloc_at_limit(context, size);
    return next.malloc(context, size);
}

COLD static void *calloc_at_limit(void *context, size_t count, size_t size)
{
    if (!is_due(count * size))
        return next.calloc(context, count, size);
    ask_for(count * size);
    return tell(next.calloc(context, 1, TOO_LARGE), count * size);
}

static void *python_calloc(void *context, size_t count, size_t size)
{
    bool is_small = count == 0 || size <= SMALL / count;
    if (is_small && countdown_charge(&this_thread, count * size))
        return calloc_at_limit(context, count, size);
    return next.calloc(context, count, size);
}

COLD static void *realloc_at_limit(void *context, void *old, size_t size)
{
    if (!is_due(size))
        return next.realloc(context, old, size);
    void *object = next.realloc(context, old, size);
    if (object == NULL)
        return NULL;
    ask_for(size);
    void *sampled = next.malloc(context, TOO_LARGE);
    if (sampled != NULL) {
        memcpy(sampled, object, size);
        next.free(context, object);
    }
    /* Without memory the next object is the sample. */
    return tell(sampled, size) != NULL ? sampled : object;
}

/* One of malloc's blocks that is sampled stays one of malloc's, which charges the new size. */
COLD static void *realloc_of_marked(void *context, void *old, size_t size)
{
    if (!shim_is_sampled(old) && size <= SMALL && countdown_charge(&this_thread, size))
        return realloc_at_limit(context, old, size);
    return next.realloc(context, old, size);
}

/* A free and an allocation of the new size, as realloc is everywhere. */
static void *python_realloc(void *context, void *old, size_t size)
{
    if (shim_may_be_sampled(old))
        return realloc_of_marked(context, old, size);
    if (size <= SMALL && countdown_charge(&this_thread, size))
        return realloc_at_limit(context, old, size);
    return next.realloc(context, old, size);
}

static void *symbol(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* Between pointers to objects and to functions through memory, which is what POSIX promises for dlsym. */
#define FIND(SLOT, NAME) (*(void **)&(SLOT) = symbol(NAME))

static bool is_same(const struct allocator *a, const struct allocator *b)
{
    return a->context == b->context && a->malloc == b->malloc && a->calloc == b->calloc && a->realloc == b->realloc &&
           a->free == b->free;
}

/* Whether objects come from Python's arenas, with nothing around that allocator: it hands blocks that are not its own on to
 * the raw domain, which another one need not do. (`_PyMem_GetCurrentAllocatorName` would tell, but in 3.12 it takes a lock
 * that is not there yet.) */
static bool has_plain_allocators(void (*get_allocator)(int, struct allocator *), const char *version)
{
    struct allocator memory;
    get_allocator(DOMAIN_RAW, &next_raw);
    get_allocator(DOMAIN_MEM, &memory);
    get_allocator(DOMAIN_OBJ, &next);
    /* Versions whose allocator without a context is either that or malloc's. */
    int minor;
    bool is_known = sscanf(version, "3.%d.", &minor) == 1 && minor >= 6 && minor <= 14;
    return is_known && is_same(&memory, &next) && next.context == NULL && next.malloc != next_raw.malloc;
}

/* Wraps the allocator of small objects. */
void python_install(void)
{
    void (*get_allocator)(int, struct allocator *);
    void (*set_allocator)(int, struct allocator *);
    struct python_symbols symbols;
    FIND(set_allocator, "PyMem_SetAllocator");
    if (set_allocator == NULL)
        return; /* most processes end here */
    FIND(get_allocator, "PyMem_GetAllocator");
    FIND(symbols.version, "Py_GetVersion");
    FIND(symbols.thread_state, "PyGILState_GetThisThreadState");
    FIND(symbols.line_of, "PyCode_Addr2Line");
    symbols.code_type = symbol("PyCode_Type");
    symbols.eval_loop = symbol("_PyEval_EvalFrameDefault");
    /* Without the interpreter's lock there are other structures and other rules. */
    bool is_free_threaded = symbol("_Py_MergeZeroLocalRefcount") != NULL;
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (get_allocator == NULL || symbols.version == NULL || hooks == NULL || is_free_threaded)
        return;
    if (!has_plain_allocators(get_allocator, symbols.version()))
        return; /* built without arenas, where all is malloc's, or to check itself */
    bool has_frames = python_frames_prepare(&symbols, hooks);
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_MALLOC,
        .name = "python",
        .flags = ALLOCSAMPLE_WALK_IN_MALLOC | ALLOCSAMPLE_FREED_BY_MALLOC,
        .walk = has_frames ? python_frames_walk : NULL,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL || pthread_key_create(&thread_key, leave) != 0)
        return;
    python_frames_belong_to(heap);
    if (has_frames)
        python_gc_prepare(hooks, heap);
    Dl_info info;
    const ElfW(Sym) *eval = NULL;
    if (has_frames && dladdr1(symbols.eval_loop, &info, (void **)&eval, RTLD_DL_SYMENT) != 0 && eval != NULL)
        hooks->interpreter_range(heap, (uintptr_t)symbols.eval_loop, (uintptr_t)symbols.eval_loop + eval->st_size);
    struct allocator raw = {next_raw.context, raw_malloc, raw_calloc, next_raw.realloc, next_raw.free};
    set_allocator(DOMAIN_RAW, &raw);
    struct allocator small = {next.context, python_malloc, python_calloc, python_realloc, next.free};
    set_allocator(DOMAIN_MEM, &small);
    set_allocator(DOMAIN_OBJ, &small);
}
