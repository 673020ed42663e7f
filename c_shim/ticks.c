/* Ticks: a signal that each thread gets whenever it has used so much of a processor.
 *
 * The signal is one of the real-time signals that the program does not use. The program does not find out: what it asks
 * about that signal is answered as if nobody handled it, it cannot block it (ticks of a thread that blocks everything
 * would all arrive at the end of that), no wait of its own takes it. As soon as it wants the signal for itself, ours
 * becomes another one. Threads without a stack for signals get one: a thread's own may be too small for a signal frame.
 * A handler of the program's on a stack for signals of its own, which may have no room for another frame, blocks ours until
 * it has returned.
 *
 * While there are no ticks, which is the default, each entry is a test and a jump. */
#define _GNU_SOURCE
#include "confinement.h"
#include "interposed.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <threads.h>
#include <ucontext.h>
#include <unistd.h>

/* 0: there are no ticks. */
static _Atomic(int) tick_signal;
/* Signals that the program has asked for, by number. */
static _Atomic(uint64_t) wanted;

/* Signals whose handlers block ours because we had them do so, by number. */
static _Atomic(uint64_t) shaded;

/* The value that each tick carries, to tell it from signals of others. */
static char mark;

static bool is_tick_signal(int signal)
{
    return UNLIKELY(signal != 0 && signal == atomic_load_explicit(&tick_signal, memory_order_relaxed));
}

static uint64_t bit_of(int signal)
{
    return signal >= 1 && signal <= 64 ? UINT64_C(1) << (signal - 1) : 0;
}

/* Threads may still have one pending: a signal that is ignored is forgotten, also there. */
static void forget_signal(int signal)
{
    struct sigaction action = {.sa_handler = SIG_IGN};
    NEXT(sigaction)(signal, &action, NULL);
    action.sa_handler = SIG_DFL;
    NEXT(sigaction)(signal, &action, NULL);
}

static void registers_of(const ucontext_t *context, struct shim_registers *registers)
{
#if defined(__x86_64__)
    const greg_t *general = context->uc_mcontext.gregs;
    *registers = (struct shim_registers){
        .pc = (uintptr_t)general[REG_RIP], .sp = (uintptr_t)general[REG_RSP], .fp = (uintptr_t)general[REG_RBP]};
#else
    const mcontext_t *machine = &context->uc_mcontext;
    *registers = (struct shim_registers){
        .pc = machine->pc, .sp = machine->sp, .fp = machine->regs[29], .link = machine->regs[30]};
#endif
}

/* Nothing here or below it locks or waits, but where the interrupted stack shows that a thread may be started (ticks.rs).
 * All signals are blocked meanwhile. */
static void on_signal(int signal, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    const struct shim_slow_path *agent = shim_agent();
    struct shim_registers registers;
    registers_of(context, &registers);
    /* The kernel merges signals of this kind that are pending: one may stand for both. */
    bool has_faults = agent != NULL && agent->on_faults(&shim_thread, &registers);
    if (info->si_code == SI_TIMER && info->si_value.sival_ptr == &mark) {
        int missed = info->si_overrun > 0 ? info->si_overrun : 0;
        if (agent != NULL)
            agent->on_tick(&shim_thread, &registers, (uint64_t)missed + 1);
    } else if (!has_faults && info->si_code <= 0 && is_tick_signal(signal)) {
        /* Somebody sent it to a process that does not handle it: it ends, once this handler has returned. */
        if (agent != NULL)
            agent->stop_ticks();
        atomic_store(&tick_signal, 0);
        forget_signal(signal);
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
    }
    errno = saved_errno;
}

/* Whether page faults are sampled, too. Their signals are made at the fault, and not before as those of a timer: where the kernel has
 * no memory for another real-time signal, it sends SIGIO instead, which would end the process. So theirs is SIGSTKFLT, which nothing
 * sends and which the kernel never queues twice. */
static bool has_faults_sampled;

bool shim_tells_pages_of_blocks;

/* The highest real-time signal but a few (which others take for the same reason) that nobody has asked for. */
static int choose_signal(void)
{
    struct sigaction present;
    bool is_wanted_itself = (atomic_load(&wanted) & bit_of(SIGSTKFLT)) != 0;
    if (has_faults_sampled && !is_wanted_itself && NEXT(sigaction)(SIGSTKFLT, NULL, &present) == 0 &&
        present.sa_handler == SIG_DFL)
        return SIGSTKFLT;
    for (int signal = SIGRTMAX - 6; signal > SIGRTMIN + 2; signal--) {
        struct sigaction action;
        bool is_wanted = (atomic_load(&wanted) & bit_of(signal)) != 0;
        if (!is_wanted && NEXT(sigaction)(signal, NULL, &action) == 0 && action.sa_handler == SIG_DFL)
            return signal;
    }
    return 0;
}

static int take_signal(void)
{
    int signal = choose_signal();
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    sigfillset(&action.sa_mask);
    if (signal == 0 || NEXT(sigaction)(signal, &action, NULL) != 0)
        return 0;
    atomic_store(&tick_signal, signal);
    return signal;
}

/* Handlers that block our signal block another one in its place, or none. */
static void shade_anew(int before, int now)
{
    uint64_t handlers = atomic_load(&shaded);
    for (int signal = 1; signal <= 64; signal++) {
        struct sigaction action;
        if ((handlers & bit_of(signal)) == 0 || NEXT(sigaction)(signal, NULL, &action) != 0)
            continue;
        sigdelset(&action.sa_mask, before);
        /* One that the program has in there stays its own. */
        if (now != 0 && sigismember(&action.sa_mask, now) == 0)
            sigaddset(&action.sa_mask, now);
        else
            atomic_fetch_and(&shaded, ~bit_of(signal));
        NEXT(sigaction)(signal, &action, NULL);
    }
}

/* The program wants our signal. */
static void yield_signal(int signal)
{
    const struct shim_slow_path *agent = shim_agent();
    int saved_errno = errno;
    atomic_fetch_or(&wanted, bit_of(signal));
    if (is_tick_signal(signal)) {
        if (agent != NULL)
            agent->stop_ticks();
        atomic_store(&tick_signal, 0);
        forget_signal(signal);
        int other = take_signal();
        shade_anew(signal, other);
        if (agent != NULL && other != 0)
            agent->start_ticks(other, &mark);
    }
    errno = saved_errno;
}

/* ---- the stack for signals ---- */

/* The start function of a thread, stored at the low end of its signal stack. */
struct shim_start {
    void *(*start)(void *);
    void *argument;
};

/* Room for a signal frame of any processor and for a handler of the program's that finds this stack before its own. */
#define SIGNAL_STACK_BYTES ((size_t)256 << 10)
#define GUARD_BYTES ((size_t)4096)

static struct shim_start *map_signal_stack(void)
{
    long base = syscall(SYS_mmap, NULL, GUARD_BYTES + SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0L);
    if (base == -1)
        return NULL;
    syscall(SYS_mprotect, base, GUARD_BYTES, PROT_NONE);
    return (struct shim_start *)(base + (long)GUARD_BYTES);
}

static void unmap_signal_stack(struct shim_start *stack)
{
    syscall(SYS_munmap, (char *)stack - GUARD_BYTES, GUARD_BYTES + SIGNAL_STACK_BYTES);
}

/* For the calling thread, unless it has one. Returns what is to be given back at the thread's end. */
static struct shim_start *use_signal_stack(struct shim_start *stack)
{
    stack_t present;
    bool has_one = syscall(SYS_sigaltstack, NULL, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0;
    stack_t ours = {.ss_sp = (char *)stack + sizeof *stack, .ss_size = SIGNAL_STACK_BYTES - sizeof *stack};
    if (has_one || syscall(SYS_sigaltstack, &ours, NULL) != 0) {
        unmap_signal_stack(stack);
        return NULL;
    }
    return stack;
}

void shim_give_back_signal_stack(void *stack)
{
    stack_t present;
    stack_t none = {.ss_flags = SS_DISABLE};
    struct shim_start *ours = stack;
    bool is_ours = syscall(SYS_sigaltstack, NULL, &present) == 0 && present.ss_sp == (char *)ours + sizeof *ours;
    /* The kernel refuses while the thread runs on it: then it stays. Somebody else's may be a part of ours: so does it. */
    if (is_ours && syscall(SYS_sigaltstack, &none, NULL) == 0)
        unmap_signal_stack(ours);
}

/* ---- threads ---- */

/* The start function of the program's new threads. The frame of this function is gone when the program's begins. */
struct shim_start shim_thread_begin(struct shim_start *stack);
__attribute__((used, visibility("hidden"))) struct shim_start shim_thread_begin(struct shim_start *stack)
{
    int saved_errno = errno;
    struct shim_start start = *stack;
    const struct shim_slow_path *agent = shim_agent();
    stack = use_signal_stack(stack);
    if (agent != NULL)
        agent->on_thread_start(&shim_thread, stack);
    errno = saved_errno;
    return start;
}

HIDDEN void *shim_thread_entry(void *stack);
#if defined(__x86_64__)
__asm__(".pushsection .text.unlikely,\"ax\",@progbits\n\t"
        ".hidden shim_thread_entry\n\t.globl shim_thread_entry\n\t.type shim_thread_entry, @function\n"
        "shim_thread_entry:\n\t"
        ".cfi_startproc\n\t"
        "sub $8, %rsp\n\t.cfi_adjust_cfa_offset 8\n\t"
        "call shim_thread_begin\n\t"
        "add $8, %rsp\n\t.cfi_adjust_cfa_offset -8\n\t"
        "mov %rdx, %rdi\n\t"
        "jmp *%rax\n\t"
        ".cfi_endproc\n\t.size shim_thread_entry, .-shim_thread_entry\n\t.popsection");
#else
__asm__(".pushsection .text.unlikely,\"ax\",@progbits\n\t"
        ".hidden shim_thread_entry\n\t.globl shim_thread_entry\n\t.type shim_thread_entry, @function\n"
        "shim_thread_entry:\n\t"
        ".cfi_startproc\n\t"
        "stp x29, x30, [sp, #-16]!\n\t.cfi_adjust_cfa_offset 16\n\t.cfi_offset x29, -16\n\t.cfi_offset x30, -8\n\t"
        "mov x29, sp\n\t"
        "bl shim_thread_begin\n\t"
        "ldp x29, x30, [sp], #16\n\t.cfi_adjust_cfa_offset -16\n\t.cfi_restore x29\n\t.cfi_restore x30\n\t"
        "mov x16, x0\n\tmov x0, x1\n\t"
        "br x16\n\t"
        ".cfi_endproc\n\t.size shim_thread_entry, .-shim_thread_entry\n\t.popsection");
#endif

/* NULL if the thread is to start without us: there are no ticks, or it is one of our own, which starts in a slow path. */
static struct shim_start *prepare_thread(void)
{
    bool is_wanted = UNLIKELY(atomic_load_explicit(&tick_signal, memory_order_relaxed) != 0);
    return is_wanted && shim_thread.counters.muted == 0 ? map_signal_stack() : NULL;
}

static int create_ticking(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    struct shim_start *prepared = prepare_thread();
    if (prepared == NULL)
        return NEXT(pthread_create)(thread, attributes, start, argument);
    *prepared = (struct shim_start){.start = start, .argument = argument};
    int result = NEXT(pthread_create)(thread, attributes, shim_thread_entry, prepared);
    if (result != 0)
        unmap_signal_stack(prepared);
    return result;
}

/* Without an answer from the attributes what glibc takes: the limit of the main thread's stack when the program began. */
static size_t stack_bytes(const pthread_attr_t *attributes)
{
    enum { WITHOUT_LIMIT = 2 << 20 };
    size_t bytes;
    struct rlimit limit;
    if (attributes != NULL && pthread_attr_getstacksize(attributes, &bytes) == 0)
        return bytes;
    if (shim_is_filtered() || getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return WITHOUT_LIMIT;
    return limit.rlim_cur;
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    int result = create_ticking(thread, attributes, start, argument);
    if (result == 0)
        shim_tell_thread(__builtin_return_address(0), *thread, stack_bytes(attributes));
    return result;
}

static int create_ticking_c11(thrd_t *thread, thrd_start_t start, void *argument)
{
    struct shim_start *prepared = prepare_thread();
    if (prepared == NULL)
        return NEXT(thrd_create)(thread, start, argument);
    /* A start that returns an int returns it where the other returns a pointer. */
    memcpy(&prepared->start, &start, sizeof start);
    prepared->argument = argument;
    thrd_start_t entry;
    void *(*any)(void *) = shim_thread_entry;
    memcpy(&entry, &any, sizeof entry);
    int result = NEXT(thrd_create)(thread, entry, prepared);
    if (result != thrd_success)
        unmap_signal_stack(prepared);
    return result;
}

EXPORT int thrd_create(thrd_t *thread, thrd_start_t start, void *argument)
{
    int result = create_ticking_c11(thread, start, argument);
    if (result == thrd_success)
        shim_tell_thread(__builtin_return_address(0), *thread, stack_bytes(NULL));
    return result;
}

bool shim_start_ticks(bool with_faults)
{
    has_faults_sampled = with_faults;
    shim_tells_pages_of_blocks =
        with_faults && shim_is_glibc() && shim_same_object(shim_next_malloc_address(), (const void *)getpagesize);
    const struct shim_slow_path *agent = shim_agent();
    int signal = agent == NULL ? 0 : take_signal();
    if (signal == 0)
        return false;
    agent->start_ticks(signal, &mark);
    struct shim_start *stack = map_signal_stack();
    agent->on_thread_start(&shim_thread, stack == NULL ? NULL : use_signal_stack(stack));
    return true;
}

void shim_end_ticks(void)
{
    int signal = atomic_exchange(&tick_signal, 0);
    const struct shim_slow_path *agent = shim_agent();
    if (signal == 0)
        return;
    if (agent != NULL)
        agent->stop_ticks();
    shade_anew(signal, 0);
    forget_signal(signal);
}

/* ---- handlers by which a collector may stop threads ---- */

/* Signals that the program has, or had, a handler of its own for. */
static _Atomic(uint64_t) handled;

static void note_handler(int signal, sighandler_t handler)
{
    if (handler != SIG_DFL && handler != SIG_IGN && signal >= 1 && signal <= 64)
        atomic_fetch_or(&handled, bit_of(signal));
}

/* libgc takes SIGPWR and SIGXCPU, D a pair of USR1 and USR2 or, since 2.103, of real-time signals. */
bool shim_may_stop_threads(void)
{
    uint64_t signals = atomic_load_explicit(&handled, memory_order_relaxed);
    uint64_t pair = bit_of(SIGUSR1) | bit_of(SIGUSR2), alone = bit_of(SIGPWR) | bit_of(SIGXCPU) | ~(bit_of(SIGRTMIN) - 1);
    return UNLIKELY(signals != 0) && ((signals & alone) != 0 || (signals & pair) == pair);
}

void shim_note_handlers(void)
{
    /* By system calls: libc's sigaction has not been looked up in such a process. The kernel's structure begins with the handler. */
    for (int signal = 1; signal <= 64; signal++) {
        sighandler_t present[8];
        if (syscall(SYS_rt_sigaction, signal, NULL, present, sizeof(uint64_t)) == 0)
            note_handler(signal, present[0]);
    }
}

/* ---- what the program asks about signals ---- */

EXPORT int sigaction(int signal, const struct sigaction *restrict action, struct sigaction *restrict old)
{
    if (action != NULL)
        note_handler(signal, action->sa_handler);
    if (is_tick_signal(signal)) {
        if (action == NULL || action->sa_handler == SIG_DFL) {
            if (old != NULL)
                *old = (struct sigaction){.sa_handler = SIG_DFL};
            return 0;
        }
        yield_signal(signal);
    }
    int ours = atomic_load_explicit(&tick_signal, memory_order_relaxed);
    if (LIKELY(ours == 0))
        return NEXT(sigaction)(signal, action, old);
    bool was_shaded = (atomic_load(&shaded) & bit_of(signal)) != 0;
    bool is_shaded = action != NULL && action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN &&
                     (action->sa_flags & SA_ONSTACK) != 0 && sigismember(&action->sa_mask, ours) == 0;
    struct sigaction copy;
    if (is_shaded) {
        copy = *action;
        sigaddset(&copy.sa_mask, ours);
    }
    int result = NEXT(sigaction)(signal, is_shaded ? &copy : action, old);
    if (result != 0)
        return result;
    if (old != NULL && was_shaded)
        sigdelset(&old->sa_mask, ours);
    if (is_shaded)
        atomic_fetch_or(&shaded, bit_of(signal));
    else if (action != NULL)
        atomic_fetch_and(&shaded, ~bit_of(signal));
    return 0;
}

/* `signal` and its kin: all take a signal and a handler, and return the one before. */
#define EXPORT_SIGNAL(NAME)                                                                                            \
    EXPORT sighandler_t NAME(int number, sighandler_t handler)                                                         \
    {                                                                                                                  \
        note_handler(number, handler);                                                                                 \
        if (is_tick_signal(number)) {                                                                                  \
            if (handler == SIG_DFL)                                                                                    \
                return SIG_DFL;                                                                                        \
            yield_signal(number);                                                                                      \
        }                                                                                                              \
        return NEXT(NAME)(number, handler);                                                                            \
    }

EXPORT_SIGNAL(signal)
sighandler_t sysv_signal(int signal, sighandler_t handler);
EXPORT_SIGNAL(sysv_signal)
sighandler_t __sysv_signal(int signal, sighandler_t handler);
EXPORT_SIGNAL(__sysv_signal)

/* The set without our signal, in `copy` if it has it. One that has nothing else is wanted by the program. */
static const sigset_t *without_ticks(const sigset_t *set, sigset_t *copy)
{
    int signal = atomic_load_explicit(&tick_signal, memory_order_relaxed);
    if (LIKELY(signal == 0) || set == NULL || shim_thread.counters.muted != 0 || sigismember(set, signal) != 1)
        return set;
    *copy = *set;
    sigdelset(copy, signal);
    if (!sigisemptyset(copy))
        return copy;
    yield_signal(signal);
    return set;
}

EXPORT int pthread_sigmask(int how, const sigset_t *restrict set, sigset_t *restrict old)
{
    sigset_t copy;
    return NEXT(pthread_sigmask)(how, how == SIG_UNBLOCK ? set : without_ticks(set, &copy), old);
}

EXPORT int sigprocmask(int how, const sigset_t *restrict set, sigset_t *restrict old)
{
    sigset_t copy;
    return NEXT(sigprocmask)(how, how == SIG_UNBLOCK ? set : without_ticks(set, &copy), old);
}

EXPORT int sigwait(const sigset_t *restrict set, int *restrict signal)
{
    sigset_t copy;
    return NEXT(sigwait)(without_ticks(set, &copy), signal);
}

EXPORT int sigwaitinfo(const sigset_t *restrict set, siginfo_t *restrict info)
{
    sigset_t copy;
    return NEXT(sigwaitinfo)(without_ticks(set, &copy), info);
}

EXPORT int sigtimedwait(const sigset_t *restrict set, siginfo_t *restrict info, const struct timespec *restrict timeout)
{
    sigset_t copy;
    return NEXT(sigtimedwait)(without_ticks(set, &copy), info, timeout);
}

EXPORT int signalfd(int fd, const sigset_t *set, int flags)
{
    sigset_t copy;
    return NEXT(signalfd)(fd, without_ticks(set, &copy), flags);
}
