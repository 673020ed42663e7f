/* C++ operator new and delete, for allocators that bring their own.
 *
 * libstdc++'s operators call malloc, which we see anyway; then these entries are a jump to it. tcmalloc and mimalloc define
 * operators that bypass malloc: there the entries charge and check like malloc and free. Some of jemalloc's (5.2.1: all, 5.3.0:
 * those with an alignment) come back through malloc: which ones is seen from what they do to the thread's counter, operator by
 * operator, in their first calls and whenever a sample is due. One that comes back sometimes only is watched for ever.
 *
 * A library that is opened with RTLD_LOCAL finds these symbols before those of its own libstdc++, which is not among
 * the objects after ours; then the C++ runtime is looked up by name, and at last malloc stands in. */
#define _GNU_SOURCE
#include "interposed.h"

#include <dlfcn.h>
#include <stdlib.h>

/* Whether one operator new calls malloc, as observed so far. */
struct watch {
    void *next;
    bool is_of_allocator;
    /* Calls that reached our malloc, and calls that did not. */
    _Atomic(uint32_t) passed_on, own;
};
enum { WATCHED_CALLS = 8 };

/* ---- last resort: no C++ runtime in sight, though somebody calls its operators ---- */

static void *new_by_malloc(size_t size)
{
    void *block = malloc(size == 0 ? 1 : size);
    if (block == NULL)
        abort(); /* std::bad_alloc, which nobody here could throw */
    return block;
}

static void *new_nothrow_by_malloc(size_t size, const void *nothrow)
{
    (void)nothrow;
    return malloc(size == 0 ? 1 : size);
}

static void *new_aligned_nothrow_by_malloc(size_t size, size_t alignment, const void *nothrow)
{
    (void)nothrow;
    void *block = NULL;
    return posix_memalign(&block, alignment < sizeof(void *) ? sizeof(void *) : alignment, size) == 0 ? block : NULL;
}

static void *new_aligned_by_malloc(size_t size, size_t alignment)
{
    void *block = new_aligned_nothrow_by_malloc(size, alignment, NULL);
    if (block == NULL)
        abort();
    return block;
}

static void delete_by_free(void *block, size_t a, size_t b)
{
    (void)a;
    (void)b;
    free(block);
}

static void *find_operator(const char *name, const void *last_resort)
{
    void *found = shim_find_symbol(name);
    static const char *const runtimes[] = {"libstdc++.so.6", "libc++.so.1"};
    for (size_t i = 0; found == NULL && i < sizeof runtimes / sizeof runtimes[0]; i++) {
        /* The handle is kept: what we jump to must not be unloaded. */
        void *runtime = dlopen(runtimes[i], RTLD_LAZY | RTLD_NOLOAD);
        if (runtime != NULL)
            found = dlsym(runtime, name);
    }
    return found == NULL ? (void *)(uintptr_t)last_resort : found;
}

static bool is_of_allocator(const void *found)
{
    return shim_same_object(found, (const void *)(uintptr_t)shim_next.malloc);
}

/* Several threads may come here at once, and find the same. */
static void *next_of(struct watch *watch, const char *name, const void *last_resort)
{
    void *next = __atomic_load_n(&watch->next, __ATOMIC_ACQUIRE);
    if (next != NULL)
        return next;
    shim_thread.counters.muted++;
    next = find_operator(name, last_resort);
    watch->is_of_allocator = is_of_allocator(next);
    shim_thread.counters.muted--;
    __atomic_store_n(&watch->next, next, __ATOMIC_RELEASE);
    return next;
}

/* State that changes with every allocation of the thread: its counter, or, if the agent reset that, the number of slow paths. */
struct mark {
    uint64_t bytes_until_sample;
    uint32_t slow_allocations;
};

static ALWAYS_INLINE struct mark mark_now(void)
{
    return (struct mark){shim_thread.counters.bytes_until_sample, shim_slow_allocations};
}

static ALWAYS_INLINE bool has_allocated_since(struct mark mark)
{
    return shim_thread.counters.bytes_until_sample != mark.bytes_until_sample ||
           shim_slow_allocations != mark.slow_allocations;
}

/* The next operator is called with a frame of ours on the stack, which is no frame of the program's: a sample that malloc
 * takes meanwhile leaves it out. An exception that passes by leaves the flag set until the next call: then samples look for
 * frames of ours that are not there. */
#define CALL_FROM_HERE(NEXT, VALUES)                                                                                   \
    ({                                                                                                                 \
        shim_is_in_operator = true;                                                                                    \
        void *allocated = NEXT VALUES;                                                                                 \
        shim_is_in_operator = false;                                                                                   \
        allocated;                                                                                                     \
    })

/* LATER: keep watching. An operator that has called malloc once is watched for ever: other calls may be served from a cache. */
enum verdict { LATER, ALLOCATES };

static enum verdict judge(struct watch *watch, bool has_passed_on)
{
    _Atomic(uint32_t) *calls = has_passed_on ? &watch->passed_on : &watch->own;
    if (atomic_load_explicit(calls, memory_order_relaxed) < WATCHED_CALLS)
        atomic_fetch_add_explicit(calls, 1, memory_order_relaxed);
    bool has_ever_passed_on = atomic_load_explicit(&watch->passed_on, memory_order_relaxed) != 0;
    bool is_sure = atomic_load_explicit(&watch->own, memory_order_relaxed) >= WATCHED_CALLS;
    return is_sure && !has_ever_passed_on ? ALLOCATES : LATER;
}

/* ---- the entries ---- */

#define DEFINE_NEW(ARGUMENTS, NAME, LAST_RESORT, PARAMETERS, TYPES, VALUES)                                            \
    static bool NAME##_allocates;                                                                                      \
    static struct watch NAME##_watch;                                                                                  \
    void *NAME##_watched_due PARAMETERS;                                                                               \
    static void *NAME##_first PARAMETERS;                                                                              \
    static void *(*NAME##_next)TYPES = NAME##_first;                                                                   \
    /* A tail call: libstdc++'s operators call malloc, whose stack must not contain a frame of ours. */                 \
    static void *NAME##_first PARAMETERS                                                                               \
    {                                                                                                                  \
        void *next = next_of(&NAME##_watch, #NAME, (const void *)(uintptr_t)LAST_RESORT);                              \
        if (NAME##_watch.is_of_allocator)                                                                              \
            next = (void *)(uintptr_t)NAME##_watched_due;                                                              \
        /* Another thread may have stored a later state. */                                                            \
        void *first = (void *)(uintptr_t)NAME##_first;                                                                 \
        __atomic_compare_exchange_n((void **)&NAME##_next, &first, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);   \
        return NAME##_next VALUES;                                                                                     \
    }                                                                                                                  \
    SHIM_DUE_ENTRY(ARGUMENTS, void *, NAME##_watched, UNPACK PARAMETERS)                                               \
    {                                                                                                                  \
        void *(*next)TYPES = (void *(*)TYPES)(uintptr_t)NAME##_watch.next;                                             \
        struct mark before = mark_now();                                                                               \
        void *block = CALL_FROM_HERE(next, VALUES);                                                                    \
        bool has_passed_on = has_allocated_since(before);                                                              \
        if (judge(&NAME##_watch, has_passed_on) == ALLOCATES) {                                                        \
            __atomic_store_n((void **)&NAME##_next, (void *)(uintptr_t)next, __ATOMIC_RELEASE);                        \
            __atomic_store_n(&NAME##_allocates, true, __ATOMIC_RELEASE);                                               \
        }                                                                                                              \
        return has_passed_on ? block : shim_after_alloc(block, size, false, SHIM_CALLER());                            \
    }                                                                                                                  \
    SHIM_DUE_ENTRY(ARGUMENTS, void *, NAME, UNPACK PARAMETERS)                                                         \
    {                                                                                                                  \
        shim_take_back(size);                                                                                          \
        void *(*next)TYPES = (void *(*)TYPES)(uintptr_t)NAME##_watch.next;                                             \
        struct mark before = mark_now();                                                                              \
        void *block = CALL_FROM_HERE(next, VALUES);                                                                    \
        if (has_allocated_since(before)) {                                                                             \
            atomic_fetch_add_explicit(&NAME##_watch.passed_on, 1, memory_order_relaxed);                               \
            __atomic_store_n(&NAME##_allocates, false, __ATOMIC_RELAXED);                                              \
            __atomic_store_n((void **)&NAME##_next, (void *)(uintptr_t)NAME##_watched_due, __ATOMIC_RELEASE);          \
            return block;                                                                                              \
        }                                                                                                              \
        return shim_after_alloc(block, size, false, SHIM_CALLER());                                                    \
    }                                                                                                                  \
    EXPORT void *NAME PARAMETERS                                                                                       \
    {                                                                                                                  \
        if (NAME##_allocates && shim_charge(size))                                                                     \
            return NAME##_due VALUES;                                                                                  \
        return NAME##_next VALUES;                                                                                     \
    }

#define DEFINE_DELETE(ARGUMENTS, NAME, PARAMETERS, TYPES, VALUES)                                                      \
    void NAME PARAMETERS;                                                                                              \
    static bool NAME##_frees;                                                                                          \
    static void NAME##_first PARAMETERS;                                                                               \
    static void(*NAME##_next) TYPES = NAME##_first;                                                                    \
    SHIM_DUE_ENTRY(ARGUMENTS, void, NAME, UNPACK PARAMETERS)                                                           \
    {                                                                                                                  \
        if (shim_before_free(block, SHIM_CALLER()))                                                                    \
            NAME##_next VALUES;                                                                                        \
    }                                                                                                                  \
    static ALWAYS_INLINE void NAME##_inline PARAMETERS                                                                 \
    {                                                                                                                  \
        if (NAME##_frees && shim_may_be_sampled(block)) {                                                              \
            NAME##_due VALUES;                                                                                         \
            return;                                                                                                    \
        }                                                                                                              \
        NAME##_next VALUES;                                                                                            \
    }                                                                                                                  \
    EXPORT void NAME PARAMETERS                                                                                        \
    {                                                                                                                  \
        NAME##_inline VALUES;                                                                                          \
    }                                                                                                                  \
    static void NAME##_first PARAMETERS                                                                                \
    {                                                                                                                  \
        shim_thread.counters.muted++;                                                                                  \
        void *found = find_operator(#NAME, (const void *)(uintptr_t)delete_by_free);                                   \
        /* One that comes back through free finds the sample taken already. */                                         \
        NAME##_frees = is_of_allocator(found);                                                                         \
        shim_thread.counters.muted--;                                                                                  \
        __atomic_store_n((void **)&NAME##_next, found, __ATOMIC_RELEASE);                                              \
        NAME##_inline VALUES;                                                                                          \
    }

#define UNPACK(...) __VA_ARGS__
#define DECLARE_NEW_NOTHING(NAME) void *NAME(size_t size);
#define DECLARE_NEW_NOTHROW(NAME) void *NAME(size_t size, const void *b);
#define DECLARE_NEW_ALIGNMENT(NAME) void *NAME(size_t size, size_t b);
#define DECLARE_NEW_ALIGNMENT_NOTHROW(NAME) void *NAME(size_t size, size_t b, const void *c);
#define NEW(NAME, AFTER_SIZE) DECLARE_NEW_##AFTER_SIZE(NAME)
#include "interposed.def"

/* `std::align_val_t` is a size_t, `std::nothrow_t &` a pointer. */
#define NEW_NOTHING(NAME) DEFINE_NEW(1, NAME, new_by_malloc, (size_t size), (size_t), (size))
#define NEW_NOTHROW(NAME)                                                                                              \
    DEFINE_NEW(2, NAME, new_nothrow_by_malloc, (size_t size, const void *b), (size_t, const void *), (size, b))
#define NEW_ALIGNMENT(NAME)                                                                                            \
    DEFINE_NEW(2, NAME, new_aligned_by_malloc, (size_t size, size_t b), (size_t, size_t), (size, b))
#define NEW_ALIGNMENT_NOTHROW(NAME)                                                                                    \
    DEFINE_NEW(3, NAME, new_aligned_nothrow_by_malloc, (size_t size, size_t b, const void *c),                         \
               (size_t, size_t, const void *), (size, b, c))
#define DELETE_1(NAME) DEFINE_DELETE(1, NAME, (void *block), (void *), (block))
#define DELETE_2(NAME) DEFINE_DELETE(2, NAME, (void *block, size_t b), (void *, size_t), (block, b))
#define DELETE_3(NAME)                                                                                                 \
    DEFINE_DELETE(3, NAME, (void *block, size_t b, size_t c), (void *, size_t, size_t), (block, b, c))

#define NEW(NAME, AFTER_SIZE) NEW_##AFTER_SIZE(NAME)
#define DELETE(NAME, PARAMETERS) DELETE_##PARAMETERS(NAME)
#include "interposed.def"
