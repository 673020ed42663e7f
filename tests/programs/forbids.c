// Behaviour: a program forbids itself more and more, on pain of death, and goes on allocating.
// Usage: forbids clock|strict|filter|files|rights|asks
#include "check.h"

#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

int capset(void *header, const void *data);

enum { TURNS = 1000 };

// What is allocated in one call is freed in the next.
static void allocate(void) {
    static void *blocks[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        free(blocks[turn]);
        blocks[turn] = malloc(3000);
        KEEP(blocks[turn]);
    }
}

// What a thread that keeps its capabilities does, and then takes those back that it needs: each call but `capset` is made by all
// threads, and glibc ends the process if one of them may not.
static int give_up_rights(void) {
    if (geteuid() != 0) return 5;
    const unsigned set_ids = 1 << CAP_SETUID | 1 << CAP_SETGID;
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct kept[2] = {{set_ids, set_ids, 0}, {0, 0, 0}};
    CHECK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
    CHECK(setresuid(65534, 65534, 65534) == 0);
    CHECK(capset(&header, kept) == 0);
    allocate();
    CHECK(setresgid(65534, 65534, 65534) == 0);
    return 5;
}

// Whether the kernel knows a call, a flag or a filter is asked by calls that it refuses, as libseccomp does.
static void ask(void) {
    const unsigned unknown = 1U << 30;
    struct sock_filter rule = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &rule};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, &filter) == -1);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == -1);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_LOG, NULL) == -1);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, unknown, &filter) == -1);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC | unknown, &filter) == -1);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1);
}

int main(int count, char **words) {
    const char *way = count > 1 ? words[1] : "";
    allocate();
    if (!strcmp(way, "clock")) {
        CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
    } else if (!strcmp(way, "strict")) {
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0);
        allocate();
        syscall(SYS_exit, 7);
    } else if (!strcmp(way, "filter")) {
        struct sock_filter rules[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        };
        struct sock_fprog filter = {sizeof rules / sizeof rules[0], rules};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
        allocate();
        _exit(8);
    } else if (!strcmp(way, "files")) {
        struct rlimit none = {0, 0};
        CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0);
    } else if (!strcmp(way, "asks")) {
        ask();
    } else if (!strcmp(way, "rights")) {
        return give_up_rights();
    }
    allocate();
    return 4;
}
