// Behaviour: calls of `syscall` that rely on its being a few instructions in libc, which jump nowhere else.
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#if defined(__x86_64__)
// Calls getpid until `*is_over`. Its variable lies where a seventh argument would lie, and `*where` says where that is.
void call_until(volatile unsigned long *volatile *where, const volatile int *is_over);
__asm__(".pushsection .text\n"
        "call_until:\n"
        "push %rbx\n"
        "sub $16, %rsp\n"
        "mov %rsi, %rbx\n"
        "movq $0, (%rsp)\n"
        "mov %rsp, (%rdi)\n"
        "1: mov $39, %edi\n"
        "call syscall@plt\n"
        "cmpl $0, (%rbx)\n"
        "je 1b\n"
        "add $16, %rsp\n"
        "pop %rbx\n"
        "ret\n"
        ".popsection\n");

static volatile unsigned long *volatile variable;
static volatile int is_over;
static unsigned long put_back;

static void *count_in_variable(void *unused) {
    while (variable == NULL) sched_yield();
    for (unsigned long value = 1; value < 20000000; value++) {
        *variable = value;
        put_back += *variable != value;
    }
    is_over = 1;
    return unused;
}

static void the_callers_stack_is_not_stored_to(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, count_in_variable, NULL) == 0);
    call_until(&variable, &is_over);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(put_back == 0);
}

static int reached;

static void on_another_stack(void) {
    reached = 1;
    syscall(SYS_exit, 5);
}

// The child returns from `syscall` to what lies on top of its stack.
static void a_call_returns_on_another_stack(void) {
    static _Alignas(16) uintptr_t stack[8192];
    uintptr_t *top = &stack[8192 - 4];
    *top = (uintptr_t)on_another_stack;
    long child = syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, top, 0, 0, 0);
    CHECK(child > 0);
    int status;
    CHECK(waitpid((pid_t)child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    CHECK(reached == 1);
}
#endif

static void results_and_errors_are_the_kernels(void) {
    errno = 0;
    CHECK(syscall(SYS_getpid) == getpid() && errno == 0);
    CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
    CHECK(syscall(SYS_unshare, -1) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_setns, -1, 0) == -1 && errno == EBADF);
    // With all six arguments.
    char *page = (char *)syscall(SYS_mmap, 0, 4096, 3, 0x22, -1, 0);
    CHECK(page != (char *)-1);
    page[0] = 1;
    CHECK(syscall(SYS_munmap, page, 4096) == 0);
}

int main(void) {
    churn(1000, 3000, 1);
    results_and_errors_are_the_kernels();
#if defined(__x86_64__)
    the_callers_stack_is_not_stored_to();
    a_call_returns_on_another_stack();
#endif
    churn(1000, 3000, 2);
    return 0;
}
