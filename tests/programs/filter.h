// Filters of system calls, and the ways to install one.
#ifndef FILTER_H
#define FILTER_H

#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define KILL_OTHERS BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define LOAD_NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)

// Asks first whether the kernel knows filters, as sandboxes do, and tries before it has the right to.
static void install_filter(const char *way, struct sock_filter *rules, unsigned short length) {
    struct sock_fprog filter = {length, rules};
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0, 0, 0) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == -1 && errno == EFAULT);
    struct sock_fprog none = {0, rules};
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &none) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &none) == -1 && errno == EINVAL);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (!strcmp(way, "prctl")) CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    else if (!strcmp(way, "prctl_by_number")) CHECK(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    else if (!strcmp(way, "seccomp")) CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0);
    else if (!strcmp(way, "all_threads"))
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
    else if (!strcmp(way, "listener"))
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter) > 0);
    else if (!strcmp(way, "all_threads_after_one")) {
        struct sock_filter rule = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog harmless = {1, &rule};
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &harmless) == 0);
        churn(5000, 3000, 5);
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
    } else CHECK(!"a way to install a filter");
}

#endif
