// Behaviour: a program forbids itself all but a few system calls, on pain of death, and goes on allocating.
// Usage: seccomp_kill [fork]
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

NOINLINE void *allocated_before_the_filter(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *allocated_behind_the_filter(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

int main(int count, char **words) {
    int is_forking = count > 1 && !strcmp(words[1], "fork");
    for (int turn = 0; turn < 1000; turn++) free(allocated_before_the_filter(1024));
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        // What computing, allocating, writing and ending need; a parent also starts children and waits for them.
        ALLOW(read),
        ALLOW(write),
        ALLOW(exit),
        ALLOW(exit_group),
        ALLOW(brk),
        ALLOW(mmap),
        ALLOW(munmap),
        ALLOW(mremap),
        ALLOW(rt_sigreturn),
        ALLOW(clone),
        ALLOW(wait4),
        ALLOW(set_robust_list),
        ALLOW(gettid),
        ALLOW(rseq),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof rules / sizeof rules[0], rules};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    for (int turn = 0; turn < 30000; turn++) free(allocated_behind_the_filter(1024));
    churn(20000, 100000, 2);
    if (is_forking) {
        pid_t child = fork();
        CHECK(child >= 0);
        churn(20000, 3000, 3);
        if (child == 0) exit(5);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    }
    CHECK(write(1, "behind the filter\n", 18) == 18);
    return 3;
}
