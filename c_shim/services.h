/* What the core of the shim does for bridges: all that they see of it, besides the public hook ABI (allocsample.h).
 *
 * The dependency has one direction. A bridge calls the core through `shim_services`, and names no other symbol of it; the core
 * calls a bridge through its `struct bridge` (bridges/bridge.h). scripts/structure reads the object files and refuses any
 * other arrow. */
#ifndef ALLOCSAMPLE_SERVICES_H
#define ALLOCSAMPLE_SERVICES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define HOT __attribute__((hot))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define COLD __attribute__((cold, noinline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Where the caller of malloc or free stood: all that the unwinder needs to start. */
struct shim_caller {
    uintptr_t pc; /* return address into the caller */
    uintptr_t sp; /* its stack pointer after that return */
    uintptr_t fp; /* its frame pointer register, whatever it holds */
};
_Static_assert(sizeof(struct shim_caller) == 24, "src/agent/shim.rs mirrors this layout");

/* A loaded object: its program headers, which no other has, and its path, "" for the program itself. */
struct shim_object {
    const void *headers;
    const char *path;
};
_Static_assert(sizeof(struct shim_object) == 16 && offsetof(struct shim_object, path) == 8,
               "src/preload/start.rs mirrors this layout");

/* The counters of one thread. Only the thread itself uses them. */
struct shim_counters {
    /* Bytes that this thread can still allocate without a sample point. An allocation of more bytes borrows: the value
     * wraps below zero (2^63 and up) and the slow path runs. It takes the charge back while it calls the next allocator;
     * in the agent the counter is so large that allocations of a signal handler just count down, and the agent sees how
     * many bytes they were. */
    uint64_t bytes_until_sample;
    /* If not 0, no sample can be taken. The agent stores its phase on this thread here; the lowest four bits count nested
     * sections of the shim itself and of bridges. */
    uint32_t muted;
    /* The agent's own. */
    uint32_t serial;
    /* Bytes allocated while muted: in no estimate, but reported. */
    uint64_t muted_bytes;
};

/* A block of malloc's has just become a sample; its caller does not have it yet. One that realloc made has content. */
typedef void shim_on_sampled(uint64_t sample, void *block, size_t size, bool is_realloc);
/* A sampled block of malloc's, or of a heap whose samples are malloc's blocks, is about to be freed or reallocated. On the
 * thread that frees it; errno must be kept. */
typedef void shim_on_sampled_end(const void *block);

/* A function that a bridge stands before in a process that was attached to. */
struct shim_redirection {
    const char *name;
    void *own;
    void *next; /* the definition that calls reach without us; NULL: there is none, and no call is redirected */
};

/* Changes with each function that is added, removed or given another meaning. */
#define SHIM_SERVICES_VERSION 7

/* Unless a function says otherwise, it may be called on any thread, also in a signal handler, and keeps errno. */
struct shim_services {
    uint32_t version; /* SHIM_SERVICES_VERSION of the core */
    uint32_t size;    /* of this table in bytes */

    /* ---- the state of the agent ---- */

    /* False before the agent is switched on, after a detach, and after it failed. */
    bool (*is_on)(void);
    /* Records why a bridge does not join the runtime in this process: the heap it would have registered, then `what`, a space
     * and `why`. The strings must stay as they are. Up to 32 in the life of a process. */
    void (*decline)(const char *heap, const char *what, const char *why);
    /* Whether the process may make any system call: no filter of these was installed. */
    bool (*is_unfiltered)(void);
    /* Whether the user asks for this `enum bridge_group`. */
    bool (*is_asked_for)(uint32_t group);

    /* ---- memory that may be gone ---- */

    /* Copies memory piece by piece, up to the first byte that is gone or has no room; returns how many bytes were copied. 0
     * while the agent is off, and where a filter of system calls does not let us ask. No more pieces than IOV_MAX. */
    size_t (*copy_foreign)(void *to, size_t room, const struct iovec *from, size_t pieces);
    /* The part of the calling thread's own stack that is known to be readable, and stays so while the thread lives. Empty while
     * the agent is off. */
    void (*own_stack)(uintptr_t *start, uintptr_t *end);

    /* ---- malloc ---- */

    /* The next allocator's functions: the block is in no figure until a bridge reports it. */
    void *(*malloc_uncounted)(size_t size);
    void *(*calloc_uncounted)(size_t count, size_t size);
    /* See shim_may_be_sampled. */
    _Atomic(uint8_t) *block_filter;
    /* Whether a block that nobody frees meanwhile is a sample of malloc's, or of a heap whose samples are malloc's blocks. */
    bool (*is_sampled)(const void *block);
    /* The caller of malloc or free, while the agent captures the stack of that call; NULL otherwise. */
    const struct shim_caller *(*sampled_caller)(void);
    /* There is one callback of each kind; a second caller replaces the first. */
    void (*set_on_sampled)(shim_on_sampled *callback);
    void (*set_on_sampled_end)(shim_on_sampled_end *callback);
    /* Names a type of malloc's blocks, as `define_type` of the hook ABI does for other heaps. */
    void (*define_malloc_type)(uint32_t type, const char *name);

    /* The counters of the calling thread, for shim_mute and shim_quiet_begin. */
    struct shim_counters *(*counters)(void);

    /* ---- loaded objects; none of these in a signal handler ---- */

    /* The symbol `name` in the objects after ours, or NULL. Takes the loader's lock. */
    void *(*find_symbol)(const char *name);
    /* The object that holds an address; false if none does. Takes the loader's lock. */
    bool (*find_object)(const void *address, struct shim_object *found);
    /* Whether two addresses are in the same object. Takes the loader's lock. */
    bool (*same_object)(const void *a, const void *b);
    /* Makes the program's own calls of a function (not those of libraries) call `own`. In `join` only. */
    void (*redirect_in_program)(const char *name, void *own);

    /* ---- calls in a process that was attached to; in `attach` only ---- */

    /* Finds `next` of each row. Takes the loader's lock. */
    void (*find_definitions)(struct shim_redirection *rows, size_t count);
    /* Has calls through slots of all objects, also of those that are loaded later, come to `own` until the process is detached from.
     * The rows must stay as they are until then. Other objects may have such functions, too: the first row's name tells.
     * `left_alone` is the number of slots that could not be changed. False: there are too many bridges that ask for it. */
    bool (*redirect_calls)(struct shim_redirection *rows, size_t count, uint64_t *left_alone);

    /* ---- one object, which is loaded completely and stays so meanwhile; no lock is taken ---- */

    /* The dynamic function or variable `name` of the object that is mapped from `start` on, or NULL. */
    void *(*symbol_of_object)(uintptr_t start, const char *name);
    /* Makes the object's own calls of a function through its slots call `to`, those that lead to `from`, or all if that is NULL. */
    void (*redirect_in_object)(uintptr_t start, const char *name, const void *from, void *to);

    /* Zeroed pages of the agent's own, which become resident as they are touched; NULL if there are none. Given back, if at all, with
     * munmap. Calls of mmap by a bridge itself would count as the program's after an attach. */
    void *(*map_own)(size_t bytes);

    /* As redirect_in_object, for slots that lead to `from`, and for those that the loader has yet to fill and would fill with it: where it
     * is the first of that name in the program's global scope. Returns how many of the object's slots lead to `to` now. Takes the
     * loader's lock. */
    size_t (*redirect_calls_of_object)(uintptr_t start, const char *name, const void *from, void *to);
};

/* Filled in when the library is loaded, before any code of it runs. */
extern HIDDEN const struct shim_services shim_services;

/* ---- the filter of blocks ---- */

/* One byte for each granule of 124 bytes of the address space, modulo 4 GiB: not 0 if a sampled block may start there.
 * The agent counts up and down; once at 127, a byte keeps that value (live.rs). Every free reads one: blocks that lie beside
 * each other share a cache line of it up to 8 KiB. Coarser granules let blocks through to the table because of their
 * neighbours (with pages, nearly all at an interval of 4 KiB), finer ones leave the cache. Thirty-two granules share a byte;
 * which ones is up to the factor: see live.rs. */
#define SHIM_FILTER_GRANULES (UINT64_C(1) << 20)

static inline size_t shim_filter_granule(const void *block)
{
#if defined(__x86_64__)
    /* One instruction, where a compiler takes three. */
    uint32_t product;
    __asm__("imull $33, %k1, %0" : "=r"(product) : "r"(block) : "cc");
#else
    uint32_t product = (uint32_t)(uintptr_t)block * 33;
#endif
    return product >> 12;
}

static inline bool shim_is_marked(_Atomic(uint8_t) *filter, const void *block)
{
#if defined(__x86_64__)
    /* One instruction, where the compiler makes a load and a test of an atomic byte. */
    bool marked;
    __asm__("cmpb $0, %1" : "=@ccne"(marked) : "m"(filter[shim_filter_granule(block)]));
    return UNLIKELY(marked);
#else
    return UNLIKELY(atomic_load_explicit(&filter[shim_filter_granule(block)], memory_order_relaxed) != 0);
#endif
}

/* ---- allocations that a bridge causes on the calling thread ---- */

/* Between shim_mute and shim_unmute no sample is taken, and bytes are counted as muted. Sections may be nested. */
static inline void shim_mute(void)
{
    shim_services.counters()->muted++;
}

static inline void shim_unmute(void)
{
    shim_services.counters()->muted--;
}

struct shim_quiet {
    struct shim_counters *counters;
    uint64_t bytes_until_sample, muted_bytes;
};

/* Between shim_quiet_begin and shim_quiet_end nothing is counted: the calling thread's counters are restored. */
static inline struct shim_quiet shim_quiet_begin(struct shim_counters *counters)
{
    struct shim_quiet before = {counters, counters->bytes_until_sample, counters->muted_bytes};
    counters->muted++;
    return before;
}

static inline void shim_quiet_end(struct shim_quiet before)
{
    before.counters->muted--;
    before.counters->muted_bytes = before.muted_bytes;
    before.counters->bytes_until_sample = before.bytes_until_sample;
}

/* ---- counters of bytes ---- */

/* The charge for an allocation of `size` bytes: an allocation of 0 bytes counts as 1. */
static inline uint64_t shim_charged(size_t size)
{
    return size + (size == 0);
}

/* Subtracts `shim_charged(size)` from a counter; true if it borrowed, which is when a sample may be due. */
static inline bool shim_charge_to(uint64_t *counter, size_t size)
{
#if defined(__x86_64__)
    /* The comparison leaves a carry for a size of 0, which the subtraction takes along: 1 is subtracted then. */
    bool borrowed;
    __asm__("cmpq $1, %2\n\tsbbq %2, %0" : "+m"(*counter), "=@ccb"(borrowed) : "r"(size));
    return UNLIKELY(borrowed);
#else
    return UNLIKELY(__builtin_sub_overflow(*counter, shim_charged(size), counter));
#endif
}

#endif
