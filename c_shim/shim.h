/* The private boundary between the C shim and the agent: per-thread state, the slow path's table.
 *
 * C holds only what must carry libc's name, compile to a tail jump, or be thread-local. It knows nothing about samples:
 * it subtracts sizes from a counter, and calls the table when the counter runs below zero. */
#ifndef ALLOCSAMPLE_SHIM_H
#define ALLOCSAMPLE_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define HOT __attribute__((hot))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define COLD __attribute__((cold, noinline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* State of one thread. Zero is the right initial value: a new thread's first allocation takes the slow path, where the
 * agent draws its first gap. `src/agent/thread.rs` mirrors this layout; both sides assert it. */
struct shim_thread {
    /* Bytes that this thread can still allocate without a sample point. An allocation of more bytes borrows: the value
     * wraps below zero (2^63 and up) and the slow path runs. It takes the charge back while it calls the next allocator;
     * in the agent the counter is so large that allocations of a signal handler just count down, and the agent sees how
     * many bytes they were. */
    uint64_t bytes_until_sample;
    /* If not 0, no sample can be taken. The agent stores its phase on this thread here; the lowest four bits count nested
     * sections of the shim itself. */
    uint32_t muted;
    /* The agent's own. */
    uint32_t serial;
    /* Bytes allocated while muted: in no estimate, but told. */
    uint64_t muted_bytes;
    /* The agent's own. */
    uint64_t agent[29];
};
_Static_assert(sizeof(struct shim_thread) == 256, "src/agent/thread.rs mirrors this layout");
_Static_assert(offsetof(struct shim_thread, muted) == 8, "src/agent/thread.rs mirrors this layout");
_Static_assert(offsetof(struct shim_thread, agent) == 24, "src/agent/thread.rs mirrors this layout");

/* Initial-exec: one instruction to address, no call to __tls_get_addr, which may allocate. */
extern HIDDEN _Thread_local struct shim_thread shim_thread __attribute__((tls_model("initial-exec")));

/* Number of calls to shim_after_alloc on this thread. An operator new uses it to detect that it called malloc. */
extern HIDDEN _Thread_local uint32_t shim_slow_allocations __attribute__((tls_model("initial-exec")));

/* Where the caller of malloc or free stood: all that the unwinder needs to start. */
struct shim_caller {
    uintptr_t pc; /* return address into the caller */
    uintptr_t sp; /* its stack pointer after that return */
    uintptr_t fp; /* its frame pointer register, whatever it holds */
};

/* Who called malloc or free, while the agent takes its stack; NULL otherwise. For bridges, whose walkers it asks then. */
extern HIDDEN _Thread_local const struct shim_caller *shim_sampled_caller __attribute__((tls_model("initial-exec")));

/* Where a signal has interrupted a thread. */
struct shim_registers {
    uintptr_t pc; /* the instruction that comes next */
    uintptr_t sp;
    uintptr_t fp;
    uintptr_t link; /* aarch64 */
};
_Static_assert(sizeof(struct shim_registers) == 32, "src/agent/os/thread.rs mirrors this layout");

/* An allocation that would borrow. */
struct shim_allocation {
    void *address;
    size_t size;      /* as requested */
    uint64_t charged; /* bytes to charge: 1 for a size of 0 */
    uint32_t is_realloc;
    uint32_t reserved;
    struct shim_caller caller;
};
_Static_assert(sizeof(struct shim_allocation) == 56, "src/agent/thread.rs mirrors this layout");

/* How the process leaves; numbers of record::ExitHow. */
enum shim_exit { SHIM_EXIT = 0, SHIM_IMMEDIATE_EXIT = 1, SHIM_QUICK_EXIT = 2, SHIM_ABORT = 3, SHIM_EXEC = 4,
                 /* Not at all: the program goes on without us. */
                 SHIM_GIVING_UP = 5 };

/* What the agent does for the shim. All functions keep errno to themselves; none allocates from the program's heap,
 * takes a lock that the program could hold, or unwinds into C. */
struct shim_slow_path {
    /* Touches as much stack as the functions below take: before anything is half done, see os::stack_room. */
    void (*make_room)(void);
    /* Called after a successful allocation that would borrow. It is not charged yet; the agent resets the counter.
     * Returns the sample's number plus one, or 0 if it is not sampled. */
    uint64_t (*on_alloc)(struct shim_thread *, const struct shim_allocation *);
    /* The block may be sampled (its page is marked). If it is, it is no longer: returns its sample id plus one, else 0. */
    uint64_t (*take_sampled)(const void *block);
    /* The sampled block taken above was freed, or is about to be. */
    void (*on_free)(struct shim_thread *, uint64_t taken, const struct shim_caller *);
    /* The block taken above was not freed after all (realloc failed). */
    void (*put_back)(const void *block, uint64_t taken);
    /* Called when a block is freed while the counter has borrowed, so that no allocation would borrow any more. */
    void (*on_borrowed)(struct shim_thread *, const struct shim_caller *);
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
    /* Between these two the process has no thread of ours. */
    void (*before_unshare)(void);
    void (*after_unshare)(void);
    /* A mount namespace is about to be entered. */
    void (*before_entering_mounts)(void);
    /* The process is about to give up its root directory or its rights. */
    void (*before_confinement)(void);
    /* The processor's clock is about to be forbidden. */
    void (*before_clock_is_forbidden)(void);
    /* A filter of system calls is about to be installed. */
    void (*before_filter)(void);
    /* It was, or was not. */
    void (*after_filter)(bool is_installed);
    /* Between these two code may be unmapped, and other code mapped in its place. */
    void (*before_dlclose)(void);
    void (*after_dlclose)(void);
    /* The thread was at `registers` when it had used a processor for another `periods` periods. In a signal handler. */
    void (*on_tick)(struct shim_thread *, const struct shim_registers *registers, uint64_t periods);
    /* A thread begins while there are ticks. `signal_stack` is NULL, or for shim_give_back_signal_stack at its end. */
    void (*on_thread_start)(struct shim_thread *, void *signal_stack);
    /* Ticks come by this signal, and carry this mark. */
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

/* One byte for each granule of 124 bytes of the address space, modulo 4 GiB: not 0 if a sampled block may start there.
 * The agent counts up and down; 255 is for ever. Every free reads one: blocks that lie beside each other share a cache
 * line of it up to 8 KiB. Coarser granules let blocks through to the table because of their neighbours (with pages,
 * nearly all at an interval of 4 KiB), finer ones leave the cache. Thirty-two granules share a byte; which ones is up
 * to the factor: see live.rs. */
#define SHIM_FILTER_GRANULES (UINT64_C(1) << 20)
extern HIDDEN _Atomic(uint8_t) shim_block_filter[SHIM_FILTER_GRANULES];

/* From now on frees ask the filter: before a granule is marked, by whoever marks it. They go on asking for good. Relaxed, as
 * the marks are: whoever frees a block that is sampled got its address from the thread that called this before. */
HIDDEN void shim_watch_frees(void);
/* Frees go to the next allocator at once, now that it is found, unless one asked for them to be watched. */
HIDDEN void shim_pass_frees_on(void);

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

static inline bool shim_may_be_sampled(const void *block)
{
#if defined(__x86_64__)
    /* One instruction, where the compiler makes a load and a test of an atomic byte. */
    bool marked;
    __asm__("cmpb $0, %1" : "=@ccne"(marked) : "m"(shim_block_filter[shim_filter_granule(block)]));
    return UNLIKELY(marked);
#else
    return UNLIKELY(atomic_load_explicit(&shim_block_filter[shim_filter_granule(block)], memory_order_relaxed) != 0);
#endif
}

/* The symbol `name` in the objects after ours, or NULL. */
HIDDEN void *shim_find_symbol(const char *name);
/* A loaded object: its program headers, which no other has, and its path, "" for the program itself. */
struct shim_object {
    const void *headers;
    const char *path;
};
/* The object that holds an address; false if none does. Takes the loader's lock for a moment. */
HIDDEN bool shim_find_object(const void *address, struct shim_object *found);
/* Whether two functions live in the same shared object. */
HIDDEN bool shim_same_object(const void *a, const void *b);
/* Whether the block came from the arena that serves allocations made while we look for the next allocator. */
HIDDEN bool shim_is_bootstrap_block(const void *block);

/* Joins the language runtime that this process is one of, if there is a bridge for it. Once, before `main`. */
HIDDEN void bridges_install(void);
/* The same for PyPy, which is joined only on request. */
HIDDEN void bridges_install_pypy(void);
/* A bridge that found its runtime and declined to join it. */
struct shim_declined {
    const char *heap, *what, *why;
};
/* Returns false if there are no more. */
HIDDEN bool bridges_declined(size_t index, struct shim_declined *found);
/* Sets free what another thread of the parent held in a bridge. */
HIDDEN void bridges_after_fork_in_child(void);

/* Probes for tools outside of the process; on the program's stack. */
HIDDEN bool shim_probe_alloc_is_on(void);
HIDDEN void shim_probe_alloc(uintptr_t pointer, uint64_t size, uint64_t weighted_bytes);
HIDDEN void shim_probe_free(uintptr_t pointer);

/* Ticks begin, for the calling thread and those that it starts; false if no signal is free. They end for good, and no
 * signal of ours comes any more. */
HIDDEN bool shim_start_ticks(void);
HIDDEN void shim_end_ticks(void);
HIDDEN void shim_give_back_signal_stack(void *stack);

/* For the agent, which cannot name thread-local variables or libc's names of C. */
HIDDEN struct shim_thread *shim_this_thread(void);
HIDDEN const void *shim_next_malloc_address(void);

/* What a bridge has to say of a sampled block of malloc's, or of a heap whose samples are malloc's blocks, while it is still
 * there: called in free and realloc, on the thread that calls them. NULL: nothing. It keeps errno. */
extern HIDDEN void (*_Atomic shim_before_sampled_ends)(const void *block);
/* The same of one of malloc's that has just become a sample, before its caller gets it. One that realloc made has content. */
extern HIDDEN void (*_Atomic shim_after_sample)(uint64_t sample, void *block, size_t size, bool is_realloc);
/* Slow halves of free, for operator delete to share. Returns whether the block may be passed on. */
HIDDEN bool shim_before_free(void *block, const struct shim_caller *);
/* Whether a block that nobody frees meanwhile is a sample of malloc's, or of a heap whose samples are malloc's blocks. */
HIDDEN bool shim_is_sampled(const void *block);
/* Second half of the slow path of every allocation function: charges the counter, and tells the agent if it borrows. */
HIDDEN void *shim_after_alloc(void *address, size_t size, bool is_realloc, const struct shim_caller *);

static inline uint64_t shim_charged(size_t size)
{
    return size + (size == 0);
}

/* Subtracts `shim_charged(size)` from a counter of the thread; true if it borrowed, which is when a sample may be due. */
static inline bool shim_charge_to(uint64_t *counter, size_t size)
{
#if defined(__x86_64__)
    /* The comparison leaves a carry for a size of 0, which the subtraction takes along: 1 is subtracted then. */
    bool borrowed;
    __asm__("cmpq $1, %2\n\tsbbq %2, %0" : "+m"(*counter), "=@ccb"(borrowed) : "r"(size));
    return UNLIKELY(borrowed);
#else
    uint64_t charged = shim_charged(size);
    uint64_t before = *counter;
    *counter = before - charged;
    return UNLIKELY(charged > before);
#endif
}

static inline bool shim_charge(size_t size)
{
    return shim_charge_to(&shim_thread.bytes_until_sample, size);
}

/* Undoes `shim_charge`: first half of the slow path of every allocation function. */
static inline void shim_take_back(size_t size)
{
    shim_thread.bytes_until_sample += shim_charged(size);
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
