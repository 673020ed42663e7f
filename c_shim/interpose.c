/* The malloc family under libc's names: fast paths, each a few instructions and a tail jump to the next allocator.
 *
 * Life of an allocation: charge the size to the thread's counter; if it does not borrow, jump to the next allocator.
 * If it borrows, the `_due` twin runs with the caller's registers. It undoes the charge, calls the next allocator, and calls
 * the agent if the charge would still borrow. It undoes the charge because a counter that has borrowed wraps to a huge number,
 * from which no later allocation borrows; a signal handler that interrupts the next allocator must find the counter unchanged.
 * A free asks the block filter whether the block may be sampled; if not, it jumps on. If so, its `_due` twin takes over.
 * While nothing was ever sampled it does not ask.
 *
 * realloc is a free and an allocation of the new size. The sample is taken out of the live set before the real call
 * (the old address may belong to another thread before it returns) and put back if the call fails. */
#define _GNU_SOURCE
#include "interposed.h"

#include <errno.h>
#include <stdlib.h>

_Thread_local struct shim_thread shim_thread;
_Thread_local const struct shim_caller *shim_sampled_caller;
_Thread_local uint32_t shim_slow_allocations;
_Thread_local bool shim_is_in_operator;
_Atomic(const struct shim_slow_path *) shim_slow_path;
_Atomic(uint8_t) shim_block_filter[SHIM_FILTER_GRANULES];

static void free_before_search(void *block);
/* The function that `free` jumps to. Not declared atomic, or a compiler would load it into a register first. */
static void (*free_goes_on)(void *) = free_before_search;
static _Atomic(shim_on_sampled *) on_sampled;
static _Atomic(shim_on_sampled_end *) on_sampled_end;

/* While the agent is off a thread looks up this often whether it is on. */
#define BYTES_UNTIL_LOOK_WHILE_OFF (UINT64_C(1) << 20)

/* Release: a bridge has prepared what its callback reads. */
void shim_set_on_sampled(shim_on_sampled *callback)
{
    atomic_store_explicit(&on_sampled, callback, memory_order_release);
}

void shim_set_on_sampled_end(shim_on_sampled_end *callback)
{
    atomic_store_explicit(&on_sampled_end, callback, memory_order_release);
}

COLD void *shim_after_alloc(void *address, size_t size, bool is_realloc, const struct shim_caller *caller)
{
    shim_slow_allocations++;
    struct shim_thread *thread = &shim_thread;
    const struct shim_slow_path *agent = shim_agent();
    if (address == NULL)
        /* Return as if there were no agent. errno is the next allocator's. */
        return NULL;
    if (agent == NULL) {
        thread->counters.bytes_until_sample = BYTES_UNTIL_LOOK_WHILE_OFF;
        return address;
    }
    agent->make_room();
    /* A signal handler that allocated meanwhile may have dealt with the sample point. Charged only if it does not borrow: from
     * here on a handler may leave us at any instruction, and the counter must be one that can run out. */
    if (shim_charged(size) <= thread->counters.bytes_until_sample) {
        shim_charge(size);
        return address;
    }
    int saved_errno = errno;
    struct shim_allocation allocation = {
        .address = address, .size = size, .charged = shim_charged(size), .is_realloc = is_realloc,
        .has_own_frame = shim_is_in_operator, .caller = *caller};
    const struct shim_caller *interrupted = shim_sampled_caller;
    shim_sampled_caller = caller;
    uint64_t sampled = agent->on_alloc(thread, &allocation);
    shim_sampled_caller = interrupted;
    shim_on_sampled *callback = atomic_load_explicit(&on_sampled, memory_order_acquire);
    if (sampled != 0 && callback != NULL)
        callback(sampled - 1, address, size, is_realloc);
    errno = saved_errno;
    return address;
}

static uint64_t take_sampled(const void *block)
{
    const struct shim_slow_path *agent = shim_agent();
    return agent == NULL ? 0 : agent->take_sampled(block);
}

/* Of a block that is about to end. Its thread's counter may have been left huge by a signal handler that jumped out of
 * `malloc`: then this is where that comes to light. */
static uint64_t take_ending(const void *block, const struct shim_caller *caller)
{
    const struct shim_slow_path *agent = shim_agent();
    if (UNLIKELY((int64_t)shim_thread.counters.bytes_until_sample < 0) && agent != NULL) {
        int saved_errno = errno;
        agent->on_borrowed(&shim_thread, caller);
        errno = saved_errno;
    }
    uint64_t taken = take_sampled(block);
    shim_on_sampled_end *callback = atomic_load_explicit(&on_sampled_end, memory_order_acquire);
    if (taken != 0 && callback != NULL)
        callback(block);
    return taken;
}

COLD bool shim_is_sampled(const void *block)
{
    uint64_t taken = take_sampled(block);
    if (taken != 0)
        shim_agent()->put_back(block, taken);
    return taken != 0;
}

static void sampled_block_ended(const void *block, uint64_t taken, const struct shim_caller *caller)
{
    const struct shim_slow_path *agent = shim_agent();
    if (taken == 0 || agent == NULL)
        return;
    int saved_errno = errno;
    const struct shim_caller *interrupted = shim_sampled_caller;
    shim_sampled_caller = caller;
    agent->on_free(&shim_thread, taken, caller);
    shim_sampled_caller = interrupted;
    shim_probe_free((uintptr_t)block);
    errno = saved_errno;
}

/* What glibc has mapped for one large block it unmaps by itself, past our munmap: sampled pages end with it. Its header, in front
 * of the block, says so. */
static void tell_pages_of(void *block)
{
    const size_t is_mapped = 2, flags = 7, header_bytes = 2 * sizeof(size_t);
    const size_t *header = (const size_t *)block - 2;
    const struct shim_slow_path *agent = shim_agent();
    if (agent != NULL && (header[1] & is_mapped) != 0)
        agent->on_pages((uintptr_t)block - header_bytes - header[0], header[0] + (header[1] & ~flags), 0);
}

COLD bool shim_before_free(void *block, const struct shim_caller *caller)
{
    if (shim_is_bootstrap_block(block))
        return false;
    uint64_t taken = take_ending(block, caller);
    if (UNLIKELY(shim_tells_pages_of_blocks) && taken != 0)
        tell_pages_of(block);
    sampled_block_ended(block, taken, caller);
    return true;
}

/* ---- malloc ---- */

SHIM_DUE_ENTRY(1, void *, malloc, size_t size)
{
    shim_take_back(size);
    return shim_after_alloc(shim_next.malloc(size), size, false, SHIM_CALLER());
}

EXPORT HOT void *malloc(size_t size)
{
    if (shim_charge(size))
        return malloc_due(size);
    return shim_next.malloc(size);
}

/* ---- free ---- */

SHIM_DUE_ENTRY(1, void, free, void *block)
{
    if (shim_before_free(block, SHIM_CALLER()))
        shim_next.free(block);
}

static HOT void free_watched(void *block)
{
    if (shim_may_be_sampled(block)) {
        free_due(block);
        return;
    }
    shim_next.free(block);
}

static void free_before_search(void *block)
{
    free_watched(block);
}

EXPORT HOT void free(void *block)
{
    free_goes_on(block);
}

void shim_pass_frees_on(void)
{
    void (*expected)(void *) = free_before_search;
    __atomic_compare_exchange_n(&free_goes_on, &expected, shim_next.free, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

void shim_watch_frees(void)
{
    /* Nearly always it is so already: no store, so that no processor loses its copy of the line. */
    if (UNLIKELY(__atomic_load_n(&free_goes_on, __ATOMIC_RELAXED) != free_watched))
        __atomic_store_n(&free_goes_on, free_watched, __ATOMIC_RELAXED);
}

SHIM_DUE_ENTRY(2, void, free_sized, void *block, size_t size)
{
    if (shim_before_free(block, SHIM_CALLER()))
        shim_next.free_sized(block, size);
}

EXPORT void free_sized(void *block, size_t size)
{
    if (shim_may_be_sampled(block)) {
        free_sized_due(block, size);
        return;
    }
    shim_next.free_sized(block, size);
}

SHIM_DUE_ENTRY(3, void, free_aligned_sized, void *block, size_t alignment, size_t size)
{
    if (shim_before_free(block, SHIM_CALLER()))
        shim_next.free_aligned_sized(block, alignment, size);
}

EXPORT void free_aligned_sized(void *block, size_t alignment, size_t size)
{
    if (shim_may_be_sampled(block)) {
        free_aligned_sized_due(block, alignment, size);
        return;
    }
    shim_next.free_aligned_sized(block, alignment, size);
}

/* ---- calloc ---- */

SHIM_DUE_ENTRY(2, void *, calloc, size_t count, size_t size)
{
    size_t bytes = count * size;
    shim_take_back(bytes);
    return shim_after_alloc(shim_next.calloc(count, size), bytes, false, SHIM_CALLER());
}

EXPORT HOT void *calloc(size_t count, size_t size)
{
    size_t bytes;
    /* The next allocator refuses an overflow in its own words; there is nothing to charge. */
    if (LIKELY(!__builtin_mul_overflow(count, size, &bytes)) && shim_charge(bytes))
        return calloc_due(count, size);
    return shim_next.calloc(count, size);
}

/* ---- realloc ---- */

uint64_t shim_before_realloc(void *block, const struct shim_caller *caller)
{
    return shim_may_be_sampled(block) ? take_ending(block, caller) : 0;
}

void *shim_after_realloc(void *block, uint64_t taken, void *moved, size_t size, const struct shim_caller *caller)
{
    if (moved == NULL && block != NULL && size == 0) {
        /* Freed, in the old reading of realloc(p, 0): no allocation took place. */
        sampled_block_ended(block, taken, caller);
        return NULL;
    }
    if (taken != 0) {
        if (moved == NULL) {
            const struct shim_slow_path *agent = shim_agent();
            if (agent != NULL)
                agent->put_back(block, taken);
        } else {
            sampled_block_ended(block, taken, caller);
        }
    }
    return shim_after_alloc(moved, size, true, caller);
}

/* The block may be sampled, or the new size is due. Nothing is charged yet. */
static void *realloc_watched(void *block, size_t size, const struct shim_caller *caller)
{
    if (shim_is_bootstrap_block(block)) {
        /* Its size is not known, but what follows it in the arena is readable: copying too much is harmless. */
        char *copy = malloc(size);
        if (copy != NULL)
            for (size_t i = 0; i < size && shim_is_bootstrap_block((char *)block + i); i++)
                copy[i] = ((char *)block)[i];
        return copy;
    }
    uint64_t taken = shim_before_realloc(block, caller);
    return shim_after_realloc(block, taken, shim_next.realloc(block, size), size, caller);
}

SHIM_DUE_ENTRY(2, void *, realloc, void *block, size_t size)
{
    shim_take_back(size);
    return realloc_watched(block, size, SHIM_CALLER());
}

SHIM_DUE_ENTRY(2, void *, realloc_marked, void *block, size_t size)
{
    return realloc_watched(block, size, SHIM_CALLER());
}

EXPORT HOT void *realloc(void *block, size_t size)
{
    if (shim_may_be_sampled(block))
        return realloc_marked_due(block, size);
    if (shim_charge(size))
        return realloc_due(block, size);
    return shim_next.realloc(block, size);
}

EXPORT void *reallocarray(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) {
        errno = ENOMEM;
        return NULL;
    }
    /* By name, as libc does: an allocator in front of us that lacks this function has its own realloc. A tail call, so
     * that the caller is who called us. */
    return realloc(block, bytes);
}

/* ---- aligned ---- */

SHIM_DUE_ENTRY(3, int, posix_memalign, void **block, size_t alignment, size_t size)
{
    shim_take_back(size);
    int error = shim_next.posix_memalign(block, alignment, size);
    shim_after_alloc(error == 0 ? *block : NULL, size, false, SHIM_CALLER());
    return error;
}

EXPORT int posix_memalign(void **block, size_t alignment, size_t size)
{
    if (shim_charge(size))
        return posix_memalign_due(block, alignment, size);
    return shim_next.posix_memalign(block, alignment, size);
}

#define INTERPOSE_ALIGNED(NAME)                                                                                        \
    SHIM_DUE_ENTRY(2, void *, NAME, size_t alignment, size_t size)                                                     \
    {                                                                                                                  \
        shim_take_back(size);                                                                                          \
        return shim_after_alloc(shim_next.NAME(alignment, size), size, false, SHIM_CALLER());      \
    }                                                                                                                  \
    EXPORT void *NAME(size_t alignment, size_t size)                                                                   \
    {                                                                                                                  \
        if (shim_charge(size))                                                                           \
            return NAME##_due(alignment, size);                                                                        \
        return shim_next.NAME(alignment, size);                                                                        \
    }

#define INTERPOSE_PAGES(NAME)                                                                                          \
    SHIM_DUE_ENTRY(1, void *, NAME, size_t size)                                                                       \
    {                                                                                                                  \
        shim_take_back(size);                                                                                          \
        return shim_after_alloc(shim_next.NAME(size), size, false, SHIM_CALLER());                 \
    }                                                                                                                  \
    EXPORT void *NAME(size_t size)                                                                                     \
    {                                                                                                                  \
        if (shim_charge(size))                                                                           \
            return NAME##_due(size);                                                                                   \
        return shim_next.NAME(size);                                                                                   \
    }

INTERPOSE_ALIGNED(aligned_alloc)
INTERPOSE_ALIGNED(memalign)
INTERPOSE_PAGES(valloc)
INTERPOSE_PAGES(pvalloc)

/* malloc_usable_size is not here: a sampled block is an ordinary block of the next allocator, whose own function the
 * program finds as it would without us. redis calls it more often than malloc. */

/* ---- for the agent ---- */

struct shim_thread *shim_this_thread(void)
{
    return &shim_thread;
}

