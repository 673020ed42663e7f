/* Tcl's own allocator, which has pools of blocks for each thread and fills them from malloc in chunks of 16 KiB: the function
 * that needed a chunk is not the one that keeps its blocks. So the blocks are counted where Tcl allocates and frees them, by
 * three functions that libtcl exports and calls by slots of its own. The slots are made to lead here, and back at a detach: no
 * code is changed. What the allocator gets from malloc meanwhile is not counted there.
 *
 * Values (Tcl_Obj, 48 bytes each) come from another pool, by way of functions that are not exported. Whichever command finds that pool
 * empty fills it from malloc, with 800 values at once. Its stack does not show who will keep them, so these chunks have one frame,
 * `(pool of values)`, and no procedure is charged. A Tcl that is built without this allocator calls malloc for each block, and has no
 * such slots. */
#define _GNU_SOURCE
#include "kit/allocator.h"
#include "tcl.h"

static const char alloc_name[] = "TclpAlloc", realloc_name[] = "TclpRealloc", free_name[] = "TclpFree";

/* The length of a block: unsigned int in Tcl 8, size_t in Tcl 9. Both are passed in the same register, and Tcl 8 ignores its
 * upper half. */
static struct {
    void *(*alloc)(size_t size);
    void *(*realloc)(void *block, size_t size);
    void (*free)(void *block);
} next;
static struct allocator allocator = {.what = "Tcl_Alloc"};
/* Below a frame's address, for callee-saved registers. */
#define SAVED_REGISTERS 48

static uintptr_t library; /* 0: it is not joined */
static bool has_wide_sizes;

/* Its functions call each other by their slots. */
static _Thread_local bool is_inside __attribute__((tls_model("initial-exec")));
/* The thread's own, or NULL until its first block. */
static _Thread_local struct shim_counters *counters __attribute__((tls_model("initial-exec")));
_Thread_local uintptr_t tcl_blocks_top_of_stack __attribute__((tls_model("initial-exec")));

/* The registers go on the stack, where the position of the byte code that runs is looked for. */
COLD static void count(void *block, size_t size)
{
    __builtin_unwind_init();
    tcl_blocks_top_of_stack = (uintptr_t)__builtin_frame_address(0) - SAVED_REGISTERS;
    allocator_allocated(&allocator, block, size);
    tcl_blocks_top_of_stack = 0;
}

static inline void allocated(void *block, size_t size)
{
    if (block == NULL)
        return;
    if (LIKELY(shim_charged(size) <= allocator_left[allocator.number]))
        allocator_allocated(&allocator, block, size);
    else
        count(block, size);
}

/* What the allocator takes from malloc until `end` is not counted there. */
static inline struct shim_quiet begin(void)
{
    if (UNLIKELY(counters == NULL))
        counters = shim_services.counters();
    is_inside = true;
    return shim_quiet_begin(counters);
}

static inline void end(struct shim_quiet quiet)
{
    shim_quiet_end(quiet);
    is_inside = false;
}

static void *own_alloc(size_t size)
{
    if (UNLIKELY(is_inside))
        return next.alloc(size);
    struct shim_quiet quiet = begin();
    void *block = next.alloc(size);
    end(quiet);
    allocated(block, has_wide_sizes ? size : (uint32_t)size);
    return block;
}

/* The old block ends first: as soon as it is free, another thread may have its address. */
static void *own_realloc(void *block, size_t size)
{
    if (UNLIKELY(is_inside))
        return next.realloc(block, size);
    if (block != NULL)
        allocator_freed(&allocator, block);
    struct shim_quiet quiet = begin();
    void *moved = next.realloc(block, size);
    end(quiet);
    allocated(moved, has_wide_sizes ? size : (uint32_t)size);
    return moved;
}

static void own_free(void *block)
{
    if (block != NULL && !is_inside)
        allocator_freed(&allocator, block);
    next.free(block);
}

static const struct {
    void *(*alloc)(size_t size);
    void *(*realloc)(void *block, size_t size);
    void (*free)(void *block);
} own = {own_alloc, own_realloc, own_free};

static void *address_of(const void *function_pointer)
{
    void *address;
    memcpy(&address, function_pointer, sizeof address);
    return address;
}

static void redirect(void)
{
    shim_services.redirect_in_object(library, free_name, NULL, address_of(&own.free));
    shim_services.redirect_in_object(library, realloc_name, NULL, address_of(&own.realloc));
    shim_services.redirect_in_object(library, alloc_name, NULL, address_of(&own.alloc));
}

bool tcl_blocks_join(const struct tcl *tcl)
{
    void *functions[] = {shim_services.symbol_of_object(tcl->start, alloc_name),
                         shim_services.symbol_of_object(tcl->start, realloc_name),
                         shim_services.symbol_of_object(tcl->start, free_name)};
    if (functions[0] == NULL || functions[1] == NULL || functions[2] == NULL)
        return false;
    allocator.key = (uintptr_t)functions[0];
    if (allocator.registered == NULL && !allocator_register(&allocator, tcl->hooks, tcl->file))
        return false;
    memcpy(&next.alloc, &functions[0], sizeof functions[0]);
    memcpy(&next.realloc, &functions[1], sizeof functions[1]);
    memcpy(&next.free, &functions[2], sizeof functions[2]);
    has_wide_sizes = tcl->layout->major > 8;
    library = tcl->start;
    allocator_start(&allocator);
    redirect();
    return true;
}

/* Tcl itself calls malloc for nothing else, once its blocks are counted. */
bool tcl_blocks_is_pool(const struct tcl *tcl)
{
    const struct shim_caller *caller = shim_services.sampled_caller();
    return library != 0 && caller != NULL && caller->pc >= tcl->start && caller->pc < tcl->end;
}

void tcl_blocks_resume(void)
{
    if (library == 0)
        return;
    allocator_resume(&allocator);
    redirect();
}

void tcl_blocks_leave(void)
{
    if (library == 0)
        return;
    allocator_stop(&allocator);
    shim_services.redirect_in_object(library, alloc_name, address_of(&own.alloc), address_of(&next.alloc));
    shim_services.redirect_in_object(library, realloc_name, address_of(&own.realloc), address_of(&next.realloc));
    shim_services.redirect_in_object(library, free_name, address_of(&own.free), address_of(&next.free));
}

void tcl_blocks_are_gone(void)
{
    library = 0;
    allocator_stop(&allocator);
}

void tcl_blocks_after_fork_in_child(void)
{
    allocators_after_fork_in_child();
}
