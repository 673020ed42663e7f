/* What a process gives up or leaves: its root directory, its rights, namespaces, system calls, its main thread, itself.
 *
 * What a call takes is told by the system call that it makes, so that `chroot(path)` and `syscall(SYS_chroot, path)` are the
 * same to us. libseccomp and libcap come through `prctl`, `capset` and `syscall`. A program that has the system call's
 * instruction in its own code is not seen. */
#define _GNU_SOURCE
#include "confinement.h"

#include "attach.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A compiler for musl may have none of the kernel's headers. */
#if __has_include(<linux/seccomp.h>)
#include <linux/seccomp.h>
#else
enum { SECCOMP_SET_MODE_STRICT = 0, SECCOMP_SET_MODE_FILTER = 1, SECCOMP_FILTER_FLAG_TSYNC = 1 };
enum { SECCOMP_MODE_STRICT = 1, SECCOMP_MODE_FILTER = 2 };
#endif

int capset(void *header, const void *data);

enum loss {
    NOTHING,
    /* The root directory, or the rights of root: nobody could open the profile any more. */
    HOME,
    /* The kernel refuses it to a process of several threads, or glibc ends a process whose threads differ in it: ours goes, and
     * comes back as a copy of one that has it. */
    OTHER_THREADS,
    /* The mounts, which a thread can leave only if it shares its root directory with no other. */
    MOUNTS,
    /* The processor's clock. */
    CLOCK,
    /* The system calls that a filter does not know: of the calling thread, and of those that it starts. */
    SOME_CALLS,
    /* The same for all threads, ours included. */
    SOME_CALLS_OF_ALL,
    /* Strict mode: every system call except reading, writing and ending. */
    NEARLY_ALL_CALLS,
    /* The calling thread, which may be the main one; the others go on. */
    THREAD,
    EVERYTHING,
};

static enum loss loss_by_unshare(int flags)
{
    const int refused = CLONE_NEWUSER | CLONE_NEWPID | CLONE_THREAD | CLONE_VM | CLONE_SIGHAND;
    return (flags & refused) != 0 ? OTHER_THREADS : NOTHING;
}

static enum loss loss_by_setns(int kind)
{
    /* Namespaces that a process of several threads can enter. 0 is "whatever the descriptor stands for". */
    const int easy = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET;
    if (kind == 0 || (kind & ~easy) != 0)
        return OTHER_THREADS;
    return (kind & CLONE_NEWNS) != 0 ? MOUNTS : NOTHING;
}

/* Without a filter the call fails: so programs ask whether the kernel knows it. */
static enum loss loss_by_filter(unsigned long filter, unsigned long flags)
{
    if (filter == 0)
        return NOTHING;
    return (flags & SECCOMP_FILTER_FLAG_TSYNC) != 0 ? SOME_CALLS_OF_ALL : SOME_CALLS;
}

static enum loss loss_by_prctl(int option, unsigned long a, unsigned long b)
{
    switch (option) {
    case PR_SET_KEEPCAPS:
    case PR_SET_SECUREBITS:
        return OTHER_THREADS;
    case PR_SET_TSC:
        return a == PR_TSC_SIGSEGV ? CLOCK : NOTHING;
    case PR_SET_SECCOMP:
        if (a == SECCOMP_MODE_STRICT)
            return NEARLY_ALL_CALLS;
        return a == SECCOMP_MODE_FILTER ? loss_by_filter(b, 0) : NOTHING;
    default:
        return NOTHING;
    }
}

static enum loss loss_by_seccomp(unsigned operation, unsigned long flags, unsigned long filter)
{
    switch (operation) {
    case SECCOMP_SET_MODE_STRICT:
        /* The kernel rejects strict mode with flags (it reads 32 bits) or an argument. libseccomp makes such a call to test for support. */
        return (unsigned)flags == 0 && filter == 0 ? NEARLY_ALL_CALLS : NOTHING;
    case SECCOMP_SET_MODE_FILTER:
        return loss_by_filter(filter, flags);
    default:
        return NOTHING;
    }
}

/* The arguments that tell; how many a system call has is its own. */
static inline enum loss loss_by(long number, unsigned long a, unsigned long b, unsigned long c)
{
    switch (number) {
    case SYS_chroot:
    case SYS_setuid:
    case SYS_setreuid:
    case SYS_setresuid:
        return HOME;
    case SYS_unshare:
        return loss_by_unshare((int)a);
    case SYS_setns:
        return loss_by_setns((int)b);
    case SYS_capset:
        return OTHER_THREADS;
    case SYS_prctl:
        return loss_by_prctl((int)a, b, c);
    case SYS_seccomp:
        return loss_by_seccomp((unsigned)a, b, c);
    case SYS_exit:
        return THREAD;
    case SYS_exit_group:
        return EVERYTHING;
    default:
        return NOTHING;
    }
}

static _Atomic(bool) is_filtered;

bool shim_is_filtered(void)
{
    return atomic_load_explicit(&is_filtered, memory_order_relaxed);
}

/* What must be undone or confirmed after the system call. */
struct preparation {
    const struct shim_slow_path *agent;
    enum loss loss;
    bool was_filtered;
};

/* `a` is the system call's first argument. */
static struct preparation prepare(enum loss loss, unsigned long a)
{
    struct preparation prepared = {
        .agent = shim_agent(),
        .loss = loss,
        .was_filtered = shim_is_filtered(),
    };
    const struct shim_slow_path *agent = prepared.agent;
    int saved_errno = errno;
    if (loss == SOME_CALLS || loss == SOME_CALLS_OF_ALL)
        atomic_store_explicit(&is_filtered, true, memory_order_relaxed);
    if (agent == NULL)
        return prepared;
    switch (loss) {
    case HOME:
        /* Only root can make this call, and loses rights by it. */
        if (geteuid() == 0)
            agent->before_confinement();
        break;
    case OTHER_THREADS:
        agent->before_unshare();
        break;
    case MOUNTS:
        agent->before_entering_mounts();
        break;
    case CLOCK:
        agent->before_clock_is_forbidden();
        break;
    case SOME_CALLS_OF_ALL:
        /* Our thread opens the profile, writes what there is, and ends. */
        agent->before_confinement();
        agent->before_unshare();
        if (!prepared.was_filtered)
            agent->before_filter();
        break;
    case SOME_CALLS:
        if (!prepared.was_filtered)
            agent->before_filter();
        break;
    case NEARLY_ALL_CALLS:
        /* Not even the time may be asked for: the profile ends here. */
        shim_end_ticks();
        agent->on_exit(SHIM_GIVING_UP, 0, NULL);
        break;
    case EVERYTHING:
        agent->on_exit(SHIM_IMMEDIATE_EXIT, (int)a, NULL);
        break;
    case THREAD:
    case NOTHING:
        break;
    }
    errno = saved_errno;
    return prepared;
}

static void conclude(const struct preparation *prepared, long result)
{
    const struct shim_slow_path *agent = prepared->agent;
    int saved_errno = errno;
    /* More than 0 is a listener's descriptor, behind a filter that is there; or a thread that the kernel could not reach, and then
     * there is none. Nothing is lost but samples where the first is assumed. */
    bool is_installed = result >= 0;
    bool is_first_filter =
        (prepared->loss == SOME_CALLS || prepared->loss == SOME_CALLS_OF_ALL) && !prepared->was_filtered;
    if (is_first_filter && !is_installed)
        atomic_store_explicit(&is_filtered, false, memory_order_relaxed);
    if (is_first_filter && agent != NULL)
        agent->after_filter(is_installed);
    if (prepared->loss == OTHER_THREADS && agent != NULL)
        agent->after_unshare();
    errno = saved_errno;
}

/* Makes the call, which returns an integer, around what a system call of this number and these arguments takes. */
#define CONFINING(CALL, NUMBER, A, B, C)                                                                               \
    ({                                                                                                                 \
        enum loss loss = loss_by(NUMBER, (unsigned long)(A), (unsigned long)(B), (unsigned long)(C));                  \
        struct preparation prepared = prepare(loss, (unsigned long)(A));                                               \
        __auto_type result = (CALL);                                                                                   \
        conclude(&prepared, result);                                                                                   \
        result;                                                                                                        \
    })

EXPORT int chroot(const char *path)
{
    return CONFINING(NEXT(chroot)(path), SYS_chroot, 0, 0, 0);
}

EXPORT int setuid(uid_t user)
{
    return CONFINING(NEXT(setuid)(user), SYS_setuid, 0, 0, 0);
}

EXPORT int seteuid(uid_t user)
{
    return CONFINING(NEXT(seteuid)(user), SYS_setresuid, 0, 0, 0);
}

EXPORT int setreuid(uid_t user, uid_t effective)
{
    return CONFINING(NEXT(setreuid)(user, effective), SYS_setreuid, 0, 0, 0);
}

EXPORT int setresuid(uid_t user, uid_t effective, uid_t saved)
{
    return CONFINING(NEXT(setresuid)(user, effective, saved), SYS_setresuid, 0, 0, 0);
}

EXPORT int unshare(int flags)
{
    return CONFINING(NEXT(unshare)(flags), SYS_unshare, flags, 0, 0);
}

EXPORT int setns(int fd, int kind)
{
    return CONFINING(NEXT(setns)(fd, kind), SYS_setns, fd, kind, 0);
}

EXPORT int capset(void *header, const void *data)
{
    return CONFINING(NEXT(capset)(header, data), SYS_capset, 0, 0, 0);
}

EXPORT int prctl(int option, ...)
{
    /* As libc does it: all that there can be, whatever the caller passed. */
    va_list arguments;
    va_start(arguments, option);
    unsigned long a = va_arg(arguments, unsigned long);
    unsigned long b = va_arg(arguments, unsigned long);
    unsigned long c = va_arg(arguments, unsigned long);
    unsigned long d = va_arg(arguments, unsigned long);
    va_end(arguments);
    return CONFINING(NEXT(prctl)(option, a, b, c, d), SYS_prctl, option, a, b);
}

typedef long system_call(long number, long a, long b, long c, long d, long e, long f);

/* A function of its own, so that the common path needs no frame. */
static __attribute__((noinline)) long call_confining(long number, long a, long b, long c, long d, long e, long f)
{
    system_call *next = (system_call *)NEXT(syscall);
    const struct shim_slow_path *agent = shim_agent();
    /* Our thread must not be left over, nor end the process with its status. */
    if (number == SYS_exit && agent != NULL && agent->on_raw_exit())
        number = SYS_exit_group;
    return CONFINING(next(number, a, b, c, d, e, f), number, a, b, c);
}

/* The function that `syscall` jumps to. */
static __attribute__((used)) system_call *way_of_system_call(long number, unsigned long a, unsigned long b, unsigned long c)
{
    return loss_by(number, a, b, c) == NOTHING ? (system_call *)NEXT(syscall) : call_confining;
}

/* An archive has another name for it (archive/names.h). */
#ifndef SHIM_SYSCALL
#define SHIM_SYSCALL "syscall"
#endif

/* A jump, so that a call that returns twice, or on another stack, returns to where it was made. In C it has a type of its own,
 * since libc's has none for what it hands on. */
#if defined(__x86_64__)
/* Not in C: the seventh argument lies on the stack, and compilers store it again before the jump. A caller that passed fewer
 * arguments has a variable of its own there, which another thread may change meanwhile. */
EXPORT system_call any_system_call __asm__(SHIM_SYSCALL);
__asm__(".pushsection .text\n"
        ".globl " SHIM_SYSCALL "\n"
        ".type " SHIM_SYSCALL ", @function\n"
        SHIM_SYSCALL ":\n"
        ".cfi_startproc\n"
        "endbr64\n"
        "push %rdi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "push %rsi\n"
        ".cfi_adjust_cfa_offset 8\n"
        "push %rdx\n"
        ".cfi_adjust_cfa_offset 8\n"
        "push %rcx\n"
        ".cfi_adjust_cfa_offset 8\n"
        "push %r8\n"
        ".cfi_adjust_cfa_offset 8\n"
        "push %r9\n"
        ".cfi_adjust_cfa_offset 8\n"
        "sub $8, %rsp\n"
        ".cfi_adjust_cfa_offset 8\n"
        "call way_of_system_call\n"
        "add $8, %rsp\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %r9\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %r8\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %rcx\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %rdx\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %rsi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "pop %rdi\n"
        ".cfi_adjust_cfa_offset -8\n"
        "jmp *%rax\n"
        ".cfi_endproc\n"
        ".size " SHIM_SYSCALL ", . - " SHIM_SYSCALL "\n"
        ".popsection\n");
#else
EXPORT long any_system_call(long number, long a, long b, long c, long d, long e, long f) __asm__(SHIM_SYSCALL);

long any_system_call(long number, long a, long b, long c, long d, long e, long f)
{
    return way_of_system_call(number, (unsigned long)a, (unsigned long)b, (unsigned long)c)(number, a, b, c, d, e, f);
}
#endif
