/* The private boundary between the C shim and the agent: per-thread state, the slow path's table.
 *
 * C holds only what must carry libc's name, compile to a tail jump, or be thread-local. It knows nothing about samples:
 * it subtracts sizes from a counter, and calls the table when the counter runs below zero. */
#ifndef ALLOCSAMPLE_SHIM_H
#define ALLOCSAMPLE_SHIM_H

#include "services.h"

#include <sys/types.h>

/* State of one thread. Zero is the right initial value: a new thread's first allocation takes the slow path, where the
 * agent draws its first gap. src/agent/accounting/thread.rs mirrors this layout; both sides assert it. */
struct shim_thread {
    struct shim_counters counters;
    /* State of the agent. */
    uint64_t agent[29];
};
_Static_assert(sizeof(struct shim_thread) == 256, "src/agent/accounting/thread.rs mirrors this layout");
_Static_assert(offsetof(struct shim_thread, counters.bytes_until_sample) == 0, "src/agent/accounting/thread.rs mirrors this layout");
_Static_assert(offsetof(struct shim_thread, counters.muted) == 8, "src/agent/accounting/thread.rs mirrors this layout");
_Static_assert(offsetof(struct shim_thread, counters.muted_bytes) == 16, "src/agent/accounting/thread.rs mirrors this layout");
_Static_assert(offsetof(struct shim_thread, agent) == 24, "src/agent/accounting/thread.rs mirrors this layout");

/* Initial-exec: one instruction to address, no call to __tls_get_addr, which may allocate. */
extern HIDDEN _Thread_local struct shim_thread shim_thread __attribute__((tls_model("initial-exec")));

/* Number of calls to shim_after_alloc on this thread. An operator new uses it to detect that it called malloc. */
extern HIDDEN _Thread_local uint32_t shim_slow_allocations __attribute__((tls_model("initial-exec")));

/* Whether one of our operators new may have called malloc on this thread. */
extern HIDDEN _Thread_local bool shim_is_in_operator __attribute__((tls_model("initial-exec")));

/* The caller of malloc or free, while the agent captures the stack of that call; NULL otherwise. */
extern HIDDEN _Thread_local const struct shim_caller *shim_sampled_caller __attribute__((tls_model("initial-exec")));

/* The registers of a thread that a signal has interrupted. */
struct shim_registers {
    uintptr_t pc; /* the instruction that comes next */
    uintptr_t sp;
    uintptr_t fp;
    uintptr_t link; /* aarch64 */
};
_Static_assert(sizeof(struct shim_registers) == 32, "src/agent/shim.rs mirrors this layout");

/* An allocation that would borrow. */
struct shim_allocation {
    void *address;
    size_t size;      /* as requested */
    uint64_t charged; /* bytes to charge: 1 for a size of 0 */
    uint32_t is_realloc;
    uint32_t has_own_frame; /* a frame of ours may be on the stack, which is none of the program's */
    struct shim_caller caller;
};
_Static_assert(sizeof(struct shim_allocation) == 56, "src/agent/shim.rs mirrors this layout");

/* A call that changed what is mapped, or is about to remove it. */
struct shim_mapping {
    uintptr_t start;
    size_t bytes;
    uint32_t change; /* numbers of record::MappingChange */
    uint32_t protection;
    uint32_t flags;
    uint32_t unused;
};
_Static_assert(sizeof(struct shim_mapping) == 32, "src/agent/shim.rs mirrors this layout");

/* Numbers of record::MappingChange. */
enum shim_change { SHIM_MAP = 1, SHIM_REMAP = 2, SHIM_BREAK = 3, SHIM_ATTACH = 4, SHIM_THREAD = 5, SHIM_UNMAP = 6,
                   SHIM_OWN = 7, SHIM_OWN_THREAD = 8, SHIM_COMMIT = 9, SHIM_UNCOMMIT = 10, SHIM_DISCARD = 11 };

/* How the process leaves; numbers of record::ExitHow. */
enum shim_exit { SHIM_EXIT = 0, SHIM_IMMEDIATE_EXIT = 1, SHIM_QUICK_EXIT = 2, SHIM_ABORT = 3, SHIM_EXEC = 4,
                 /* The program continues without us. */
                 SHIM_GIVING_UP = 5 };

/* What the agent does for the shim. All functions keep errno to themselves; none allocates from the program's heap,
 * takes a lock that the program could hold, or unwinds into C. */
struct shim_slow_path {
    /* Touches as much stack as the functions below take: before anything is half done, see os::stack_room. */
    void (*make_room)(void);
    /* Called after a successful allocation that would borrow. It is not charged yet; the agent resets the counter.
     * Returns the sample's number plus one, or 0 if it is not sampled. */
    uint64_t (*on_alloc)(struct shim_thread *, const struct shim_allocation *);
    /* The block may be sampled (its granule is marked). Removes it from the live samples and returns its id plus one; 0 if it
     * is no sample. */
    uint64_t (*take_sampled)(const void *block);
    /* The sampled block that take_sampled returned was freed, or is about to be. */
    void (*on_free)(struct shim_thread *, uint64_t taken, const struct shim_caller *);
    /* The block taken above was not freed after all (realloc failed). */
    void (*put_back)(const void *block, uint64_t taken);
    /* Called when a block is freed while the counter has borrowed, so that no allocation would borrow any more. */
    void (*on_borrowed)(struct shim_thread *, const struct shim_caller *);
    /* mmap or one of its kin was called. Before a call that unmaps, after any other. */
    void (*on_mapping)(struct shim_thread *, const struct shim_mapping *);
    /* Returns the argument for after_fork. */
    int (*before_fork)(struct shim_thread *);
    /* `child` is 0 in the child, negative in a parent whose fork failed. */
    void (*after_fork)(struct shim_thread *, pid_t child, int before);
    /* The process is about to leave. For SHIM_EXEC `path` is the program; returns whether to call after_exec_failed. */
    bool (*on_exit)(enum shim_exit how, int status, const char *path);
    void (*after_exec_failed)(void);
    /* The calling thread is about to end by pthread_exit. */
    void (*on_pthread_exit)(void);
    /* The calling thread is about to end by the system call. True: as the program's last one, so that the process must end. */
    bool (*on_raw_exit)(void);
    /* Stops the agent's thread, and allows it again. */
    void (*before_unshare)(void);
    void (*after_unshare)(void);
    /* A mount namespace is about to be entered. */
    void (*before_entering_mounts)(void);
    /* The process is about to give up its root directory or its rights. */
    void (*before_confinement)(void);
    /* Reading the time stamp counter is about to be forbidden. */
    void (*before_clock_is_forbidden)(void);
    /* A filter of system calls is about to be installed. */
    void (*before_filter)(void);
    /* The filter was installed, or was not. */
    void (*after_filter)(bool is_installed);
    /* Between these two code may be unmapped, and other code mapped in its place. */
    void (*before_dlclose)(void);
    void (*after_dlclose)(void);
    /* The thread was at `registers` when it had used a processor for another `periods` periods. In a signal handler. */
    void (*on_tick)(struct shim_thread *, const struct shim_registers *registers, uint64_t periods);
    /* A thread begins while there are ticks. `signal_stack` is NULL, or for shim_give_back_signal_stack at its end. */
    void (*on_thread_start)(struct shim_thread *, void *signal_stack);
    /* A signal has come that may be of the thread's sampled page faults. In a signal handler. False: there was none. */
    bool (*on_faults)(struct shim_thread *, const struct shim_registers *registers);
    /* The program has given this memory back, or is about to; or it has moved it, if `moved_to` is not 0. */
    void (*on_pages)(uintptr_t start, size_t bytes, uintptr_t moved_to);
    /* Starts time samples by this signal, with this mark. */
    void (*start_ticks)(int signal, const void *mark);
    void (*stop_ticks)(void);
    /* Copies memory that may be gone, piece by piece, up to the first byte that is gone or has no room; returns how many bytes
     * were copied. 0 where a filter of system calls does not let us ask. No more pieces than IOV_MAX. */
    size_t (*copy_foreign)(void *to, size_t room, const struct iovec *from, size_t pieces);
    /* The part of the calling thread's own stack that is known to be readable, and stays so while the thread lives. */
    void (*own_stack)(const struct shim_thread *, uintptr_t *start, uintptr_t *end);
    /* Names a type of malloc's blocks, as the hook ABI does those of other heaps. */
    void (*define_type)(uint32_t type, const char *name);
};

/* NULL while the agent is off: before its constructor, after it failed. */
extern HIDDEN _Atomic(const struct shim_slow_path *) shim_slow_path;

/* The present table. Acquire: pairs with the store of a complete table. */
static inline const struct shim_slow_path *shim_agent(void)
{
    return atomic_load_explicit(&shim_slow_path, memory_order_acquire);
}

/* See services.h. */
extern HIDDEN _Atomic(uint8_t) shim_block_filter[SHIM_FILTER_GRANULES];

/* From now on frees ask the filter: before a granule is marked, by whoever marks it. They go on asking for good. Relaxed, as
 * the marks are: whoever frees a block that is sampled got its address from the thread that called this before. */
HIDDEN void shim_watch_frees(void);
/* Frees go to the next allocator at once, now that it is found, unless one asked for them to be watched. */
HIDDEN void shim_pass_frees_on(void);

static inline bool shim_may_be_sampled(const void *block)
{
    return shim_is_marked(shim_block_filter, block);
}

/* The symbol `name` in the objects after ours, or NULL. */
HIDDEN void *shim_find_symbol(const char *name);
/* The object that holds an address; false if none does. Takes the loader's lock for a moment. */
HIDDEN bool shim_find_object(const void *address, struct shim_object *found);
/* Whether the process's C library is glibc. Otherwise it is musl, which passes constructors no arguments. */
HIDDEN bool shim_is_glibc(void);
/* The loader's list of objects, which it keeps for debuggers; NULL if it has none. */
struct r_debug;
HIDDEN const struct r_debug *shim_list_of_loader(void);
/* Whether a function's address is that of its code. In a program that is linked to a fixed address it may be that of
 * the program's own stub, which leads to the first definition there is. */
HIDDEN bool shim_is_definition(const void *address);
/* Whether two functions live in the same shared object. */
HIDDEN bool shim_same_object(const void *a, const void *b);
/* Whether the block came from the arena that serves allocations made while we look for the next allocator. */
HIDDEN bool shim_is_bootstrap_block(const void *block);

/* See services.h. */
HIDDEN void shim_set_on_sampled(shim_on_sampled *callback);
HIDDEN void shim_set_on_sampled_end(shim_on_sampled_end *callback);

/* Probes for tools outside of the process; on the program's stack. */
HIDDEN bool shim_probe_alloc_is_on(void);
HIDDEN void shim_probe_alloc(uintptr_t pointer, uint64_t size, uint64_t weighted_bytes);
HIDDEN void shim_probe_free(uintptr_t pointer);

/* Ticks begin, for the calling thread and those that it starts; false if no signal is free. They end for good, and no
 * signal of ours comes any more. */
HIDDEN bool shim_start_ticks(bool with_faults);
/* Page faults are sampled, and malloc is glibc's. */
extern HIDDEN bool shim_tells_pages_of_blocks;
HIDDEN void shim_end_ticks(void);
/* Whether the program has handlers as garbage collectors have them that stop threads by signals. */
HIDDEN bool shim_may_stop_threads(void);
/* After an attach: the program has its handlers already. */
HIDDEN void shim_note_handlers(void);
HIDDEN void shim_give_back_signal_stack(void *stack);

/* A call that maps, which no recording may have: its return address is all that is known of its stack. */
struct shim_kept_mapping {
    struct shim_mapping mapping; /* no bytes: it is gone */
    uintptr_t caller;
};
_Static_assert(sizeof(struct shim_kept_mapping) == 40, "src/agent/shim.rs mirrors this layout");
/* Returns false if there are no more. From now on only large ones are kept. */
HIDDEN bool shim_kept_mapping(size_t index, struct shim_kept_mapping *found);

/* Zeroed pages of the agent's own, or NULL. The library's calls of mmap by its name reach libc, and not us, after an attach. */
HIDDEN void *shim_map_own(size_t bytes);
/* `caller` has started a thread, whose descriptor lies here: a pthread_t of glibc is its address. */
HIDDEN void shim_tell_thread(const void *caller, uintptr_t descriptor, size_t stack_bytes);

/* For the agent, which cannot name thread-local variables or libc's names of C. */
HIDDEN struct shim_thread *shim_this_thread(void);
HIDDEN const void *shim_next_malloc_address(void);

/* Slow halves of free, for operator delete to share. Returns whether the block may be passed on. */
HIDDEN bool shim_before_free(void *block, const struct shim_caller *);
/* Whether a block that nobody frees meanwhile is a sample of malloc's, or of a heap whose samples are malloc's blocks. */
HIDDEN bool shim_is_sampled(const void *block);
/* Second half of the slow path of every allocation function: charges the counter, and tells the agent if it borrows. */
HIDDEN void *shim_after_alloc(void *address, size_t size, bool is_realloc, const struct shim_caller *);
/* Before a block changes its size, and after: its old sample ends, if it moved to `moved` or was freed, and the new size is charged. */
HIDDEN uint64_t shim_before_realloc(void *block, const struct shim_caller *);
HIDDEN void *shim_after_realloc(void *block, uint64_t taken, void *moved, size_t size, const struct shim_caller *);

static inline bool shim_charge(size_t size)
{
    return shim_charge_to(&shim_thread.counters.bytes_until_sample, size);
}

/* Undoes `shim_charge`: first half of the slow path of every allocation function. */
static inline void shim_take_back(size_t size)
{
    shim_thread.counters.bytes_until_sample += shim_charged(size);
}

/* Defines `TYPE NAME_due(parameters)`, the entry of a slow path that is reached by a tail jump from `malloc` and its kin,
 * while the stack and the callee-saved registers are still the caller's. It passes on its arguments, of which there
 * are ARGUMENTS, followed by the caller's stack pointer, frame pointer and return address. */
#if defined(__x86_64__)
#define SHIM_REGISTERS_1 "mov %rsp, %rsi\n\tmov %rbp, %rdx\n\tmov (%rsp), %rcx\n\t"
#define SHIM_REGISTERS_2 "mov %rsp, %rdx\n\tmov %rbp, %rcx\n\tmov (%rsp), %r8\n\t"
#define SHIM_REGISTERS_3 "mov %rsp, %rcx\n\tmov %rbp, %r8\n\tmov (%rsp), %r9\n\t"
#define SHIM_JUMP "jmp "
#define SHIM_SP_AFTER_RETURN(sp) ((sp) + sizeof(void *))
#elif defined(__aarch64__)
#define SHIM_REGISTERS_1 "mov x1, sp\n\tmov x2, x29\n\tmov x3, x30\n\t"
#define SHIM_REGISTERS_2 "mov x2, sp\n\tmov x3, x29\n\tmov x4, x30\n\t"
#define SHIM_REGISTERS_3 "mov x3, sp\n\tmov x4, x29\n\tmov x5, x30\n\t"
#define SHIM_JUMP "b "
#define SHIM_SP_AFTER_RETURN(sp) (sp)
#else
#error "allocsample knows x86-64 and aarch64"
#endif

#define SHIM_DUE_ENTRY(ARGUMENTS, TYPE, NAME, ...)                                                                     \
    TYPE NAME##_due(__VA_ARGS__);                                                                                      \
    __asm__(".pushsection .text.unlikely,\"ax\",@progbits\n\t"                                                         \
            ".hidden " #NAME "_due\n\t.globl " #NAME "_due\n\t.type " #NAME "_due, @function\n" #NAME "_due:\n\t"      \
            ".cfi_startproc\n\t" SHIM_REGISTERS_##ARGUMENTS SHIM_JUMP #NAME "_slow\n\t.cfi_endproc\n\t"                \
            ".size " #NAME "_due, .-" #NAME "_due\n\t.popsection");                                                    \
    __attribute__((used, cold, noinline, visibility("hidden"))) TYPE NAME##_slow(__VA_ARGS__, uintptr_t sp,            \
                                                                                 uintptr_t fp, uintptr_t pc)

#define SHIM_CALLER() (&(struct shim_caller){.pc = pc, .sp = SHIM_SP_AFTER_RETURN(sp), .fp = fp})

#endif
