/* The steps of a process's life that the agent must know of: fork, exec, the exits, dlclose. What a process gives up on the way
 * is in confinement.c.
 *
 * Each entry tells the agent and then does what was asked. vfork is not wrapped: its child runs on the parent's stack
 * and memory, and the exec or _exit that ends it is told apart by pid inside the agent. */
#define _GNU_SOURCE
#include "attach.h"
#include "bridges/registry.h"
#include "confinement.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool leaving(enum shim_exit how, int status, const char *path)
{
    const struct shim_slow_path *agent = shim_agent();
    if (agent == NULL)
        return false;
    int saved_errno = errno;
    bool tell_failure = agent->on_exit(how, status, path);
    errno = saved_errno;
    return tell_failure;
}

/* ---- fork ---- */

/* Returns the argument for after_fork. */
static int before_fork(void)
{
    const struct shim_slow_path *agent = shim_agent();
    return agent == NULL ? 0 : agent->before_fork(&shim_thread);
}

static void after_fork(pid_t child, int before)
{
    const struct shim_slow_path *agent = shim_agent();
    int saved_errno = errno;
    if (child == 0) {
        bridges_after_fork_in_child();
        shim_redirect_after_fork_in_child();
    }
    if (agent != NULL)
        agent->after_fork(&shim_thread, child, before);
    errno = saved_errno;
}

EXPORT pid_t fork(void)
{
    int before = before_fork();
    pid_t child = NEXT(fork)();
    after_fork(child, before);
    return child;
}

EXPORT pid_t _Fork(void)
{
    __auto_type next = NEXT(_Fork);
    if (next == NULL) { /* glibc before 2.34, whose fork would run handlers that _Fork must not run */
        errno = ENOSYS;
        return -1;
    }
    int before = before_fork();
    pid_t child = next();
    after_fork(child, before);
    return child;
}

/* ---- exits ---- */

EXPORT _Noreturn void _exit(int status)
{
    leaving(SHIM_IMMEDIATE_EXIT, status, NULL);
    NEXT(_exit)(status);
    __builtin_unreachable();
}

EXPORT _Noreturn void _Exit(int status)
{
    leaving(SHIM_IMMEDIATE_EXIT, status, NULL);
    NEXT(_Exit)(status);
    __builtin_unreachable();
}

/* quick_exit runs handlers that may allocate; ours is registered by the first call, so it runs before those that were
 * registered earlier. What they allocate is not in the profile. */
static int quick_exit_status;

/* What at_quick_exit calls, a function that is linked into each object. musl does not have it. */
extern int __cxa_at_quick_exit(void (*handler)(void *), void *object) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static void on_quick_exit(void *unused)
{
    (void)unused;
    leaving(SHIM_QUICK_EXIT, quick_exit_status, NULL);
}

EXPORT _Noreturn void quick_exit(int status)
{
    quick_exit_status = status;
    if (__cxa_at_quick_exit == NULL || __cxa_at_quick_exit(on_quick_exit, __dso_handle) != 0)
        on_quick_exit(NULL);
    NEXT(quick_exit)(status);
    __builtin_unreachable();
}

/* Runs the SIGABRT handler, as libc's abort does first. A handler may leave by siglongjmp; the process then continues, and so
 * must the recording. If the handler returns, it is reset, and libc's abort ends the process. A seccomp filter may forbid
 * sigaction, so after one everything is left to libc. sigaction is called by its own name because an attached process has no
 * `next` pointer for it. */
static void run_abort_handler(void)
{
    struct sigaction action;
    if (shim_is_filtered() || sigaction(SIGABRT, NULL, &action) != 0)
        return;
    bool is_handled = (action.sa_flags & SA_SIGINFO) != 0 ||
                      (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    if (!is_handled)
        return;
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGABRT);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    raise(SIGABRT);
    action = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(SIGABRT, &action, NULL);
}

EXPORT _Noreturn void abort(void)
{
    run_abort_handler();
    leaving(SHIM_ABORT, 0, NULL);
    NEXT(abort)();
    __builtin_unreachable();
}

EXPORT _Noreturn void pthread_exit(void *value)
{
    const struct shim_slow_path *agent = shim_agent();
    if (agent != NULL)
        agent->on_pthread_exit();
    NEXT(pthread_exit)(value);
    __builtin_unreachable();
}

/* ---- exec ---- */

static int after_failed_exec(bool tell)
{
    const struct shim_slow_path *agent = shim_agent();
    int saved_errno = errno;
    if (tell && agent != NULL)
        agent->after_exec_failed();
    errno = saved_errno;
    return -1;
}

/* Whether an exec of this file is certain to fail. Most failing execs are a search through PATH; they must not end the
 * recording. If another process creates the program after this check, the profile looks like that of a crash: the ring stays,
 * and the reader recovers everything in it. */
static bool cannot_run(const char *path)
{
    if (shim_is_filtered())
        return false;
    struct stat status;
    int saved_errno = errno;
    /* A seccomp filter may return other errors for faccessat; only EACCES is certain. */
    bool cannot = path == NULL || stat(path, &status) != 0 || !S_ISREG(status.st_mode) ||
                  (faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) != 0 && errno == EACCES);
    errno = saved_errno;
    return cannot;
}

/* Whether an exec of a command that execvp searches for in PATH is certain to fail. */
static bool cannot_find(const char *file)
{
    if (file == NULL || *file == '\0' || strchr(file, '/') != NULL)
        return cannot_run(file);
    const char *directory = getenv("PATH");
    size_t length = strlen(file);
    char path[PATH_MAX];
    /* Without PATH, libc uses a default list. */
    if (directory == NULL || length >= NAME_MAX)
        return false;
    for (;;) {
        size_t prefix = strcspn(directory, ":");
        if (prefix + 1 + length < sizeof path) {
            memcpy(path, directory, prefix);
            /* An empty entry is the working directory. */
            path[prefix] = '/';
            memcpy(path + prefix + (prefix > 0), file, length + 1);
            if (!cannot_run(path))
                return false;
        }
        if (directory[prefix] == '\0')
            return true;
        directory += prefix + 1;
    }
}

/* Called through a pointer below: in a process that was attached to, the name is libc's. */
static int execve_told(const char *path, char *const argv[], char *const envp[])
{
    bool tell = !cannot_run(path) && leaving(SHIM_EXEC, 0, path);
    NEXT(execve)(path, argv, envp);
    return after_failed_exec(tell);
}

EXPORT int execve(const char *path, char *const argv[], char *const envp[])
{
    return execve_told(path, argv, envp);
}

EXPORT int execv(const char *path, char *const argv[])
{
    return execve_told(path, argv, environ);
}

static int execvpe_told(const char *file, char *const argv[], char *const envp[])
{
    bool tell = !cannot_find(file) && leaving(SHIM_EXEC, 0, file);
    NEXT(execvpe)(file, argv, envp);
    return after_failed_exec(tell);
}

EXPORT int execvpe(const char *file, char *const argv[], char *const envp[])
{
    return execvpe_told(file, argv, envp);
}

EXPORT int execvp(const char *file, char *const argv[])
{
    return execvpe_told(file, argv, environ);
}

EXPORT int fexecve(int fd, char *const argv[], char *const envp[])
{
    bool tell = leaving(SHIM_EXEC, 0, "(a file descriptor)");
    NEXT(fexecve)(fd, argv, envp);
    return after_failed_exec(tell);
}

EXPORT int execveat(int directory, const char *path, char *const argv[], char *const envp[], int flags)
{
    __auto_type next = NEXT(execveat);
    if (next == NULL) { /* glibc before 2.34 */
        errno = ENOSYS;
        return -1;
    }
    bool tell = leaving(SHIM_EXEC, 0, path);
    next(directory, path, argv, envp, flags);
    return after_failed_exec(tell);
}

/* The arguments after `first` up to NULL. Like libc, on the stack: exec* must work in a child of vfork and in signal
 * handlers, where nothing may be allocated. */
static size_t count_arguments(va_list arguments)
{
    size_t count = 1;
    while (va_arg(arguments, const char *) != NULL)
        count++;
    return count;
}

#define COLLECT_ARGUMENTS(FIRST)                                                                                       \
    va_list arguments;                                                                                                 \
    va_start(arguments, FIRST);                                                                                        \
    size_t count = count_arguments(arguments);                                                                         \
    va_end(arguments);                                                                                                 \
    char *argv[count + 1];                                                                                             \
    argv[0] = (char *)(uintptr_t)(FIRST);                                                                              \
    va_start(arguments, FIRST);                                                                                        \
    for (size_t i = 1; i <= count; i++)                                                                                \
        argv[i] = va_arg(arguments, char *)

EXPORT int execl(const char *path, const char *first, ...)
{
    COLLECT_ARGUMENTS(first);
    va_end(arguments);
    return execve_told(path, argv, environ);
}

EXPORT int execlp(const char *file, const char *first, ...)
{
    COLLECT_ARGUMENTS(first);
    va_end(arguments);
    return execvpe_told(file, argv, environ);
}

EXPORT int execle(const char *path, const char *first, ...)
{
    COLLECT_ARGUMENTS(first);
    char *const *envp = va_arg(arguments, char *const *);
    va_end(arguments);
    return execve_told(path, argv, envp);
}

/* ---- dlclose ---- */

EXPORT int dlclose(void *handle)
{
    const struct shim_slow_path *agent = shim_agent();
    if (agent != NULL)
        agent->before_dlclose();
    bridges_before_dlclose();
    int result = NEXT(dlclose)(handle);
    bridges_after_dlclose();
    if (agent != NULL)
        agent->after_dlclose();
    return result;
}
