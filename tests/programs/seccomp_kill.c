// Behaviour: a program forbids itself all but a few system calls, on pain of death, and goes on allocating.
// Usage: seccomp_kill alone|fork WAY; see filter.h
#include "check.h"
#include "filter.h"

#include <sys/wait.h>

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
    CHECK(count == 3);
    int is_forking = !strcmp(words[1], "fork");
    for (int turn = 0; turn < 1000; turn++) free(allocated_before_the_filter(1024));
    struct sock_filter rules[] = {
        LOAD_NUMBER,
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
        KILL_OTHERS,
    };
    install_filter(words[2], rules, sizeof rules / sizeof rules[0]);
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
