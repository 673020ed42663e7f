// Behaviour: a process allocates 1000 blocks at one site, then meets the fault that is named; if it survives, it allocates
// 30,000 blocks at another.
// Usage: faults FAULT
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { BEFORE = 1000, AFTER = 30000, KEPT = 10, BYTES = 1024 };

static void *kept[KEPT];

NOINLINE void *allocated_before_the_fault(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *allocated_after_the_fault(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *allocated_in_the_handler(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void say(const char *text) { CHECK(write(1, text, strlen(text)) == (ssize_t)strlen(text)); }

static void before(void) {
    for (int turn = 0; turn < BEFORE; turn++) {
        void *block = allocated_before_the_fault(BYTES);
        paint(block, BYTES, 1);
        if (turn < KEPT)
            kept[turn] = block;
        else
            free(block);
    }
}

static void after(void) {
    for (int turn = 0; turn < AFTER; turn++) {
        void *block = allocated_after_the_fault(BYTES);
        CHECK(block != NULL);
        paint(block, BYTES, 2);
        free(block);
    }
    for (int turn = 0; turn < KEPT; turn++) CHECK(is_painted(kept[turn], BYTES, 1));
}

// Far deeper than any stack: each call takes 256 bytes of it, and a block. The block is the one that was freed before, which
// libc gives without its lock and with hardly any stack: the stack ends in this function or in whoever looks on.
NOINLINE static int fall(int depth) {
    volatile char room[256];
    if (depth == 1 << 20) return 0;
    room[0] = (char)depth;
    void *block = allocated_after_the_fault(64);
    KEEP(block);
    free(block);
    return fall(depth + 1) + room[0] + (block == NULL);
}

static void allocate_in_handler(void) {
    for (int turn = 0; turn < 100; turn++) free(allocated_in_the_handler(512));
}

static void end_in_handler(int number) {
    (void)number;
    allocate_in_handler();
    say("in the handler\n");
    _exit(31);
}

static void crash_in_handler(int number) {
    (void)number;
    allocate_in_handler();
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
}

static void abort_in_handler(int number) {
    (void)number;
    allocate_in_handler();
    abort();
}

static void handle(int number, void (*handler)(int)) {
    static char stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&other, NULL) == 0 && sigaction(number, &action, NULL) == 0);
}

static void expect_status(pid_t child, int expected) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == expected);
}

// What daemon(3) and its many copies do: two forks, a new session, another directory, no descriptors.
static void become_daemon(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) _exit(0);
    CHECK(setsid() > 0);
    child = fork();
    CHECK(child >= 0);
    if (child > 0) _exit(0);
    CHECK(chdir("/") == 0);
    umask(0);
    for (int fd = 0; fd < 1024; fd++) close(fd);
    CHECK(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2);
}

// The shell that started it: waits for both, which its children's children come to as well.
static void daemon_under_a_shell(void) {
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        become_daemon();
        after();
        exit(17);
    }
    expect_status(child, 0);
    int status;
    pid_t daemon;
    // The process in between ends with 0, the daemon with 17.
    int seen = 0;
    while ((daemon = wait(&status)) > 0)
        if (WIFEXITED(status) && WEXITSTATUS(status) == 17) seen++;
    CHECK(seen == 1);
}

static void drop_root(void) {
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(setuid(0) == -1 && errno == EPERM);
}

static void change_root(void) {
    char name[] = "/tmp/faults-XXXXXX";
    CHECK(mkdtemp(name) != NULL);
    CHECK(chroot(name) == 0 && chdir("/") == 0);
    CHECK(access("/tmp", F_OK) == -1);
}

static void enter_namespaces(void) {
    int old = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    CHECK(old >= 0);
    if (unshare(CLONE_NEWNS) != 0) _exit(77);
    after();
    CHECK(setns(old, CLONE_NEWNS) == 0);
    int pids = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    CHECK(pids >= 0 && setns(pids, CLONE_NEWPID) == 0);
    close(old);
    close(pids);
}

// A namespace of users can be entered by a process of a single thread only.
static void enter_user_namespace(void) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char answer = unshare(CLONE_NEWUSER) == 0 ? 'y' : 'n';
        CHECK(write(ready[1], &answer, 1) == 1);
        for (;;) pause();
    }
    char answer;
    CHECK(read(ready[0], &answer, 1) == 1);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)child);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (answer == 'n' || space < 0) {
        kill(child, SIGKILL);
        _exit(77);
    }
    after();
    CHECK(setns(space, CLONE_NEWUSER) == 0);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    close(space);
}

static int is_done;

static void *allocating(void *seed) {
    while (!__atomic_load_n(&is_done, __ATOMIC_ACQUIRE)) churn(20, 2000, (unsigned)(size_t)seed);
    return NULL;
}

static void fork_among_threads(void) {
    enum { THREADS = 63, FORKS = 10 };
    pthread_t threads[THREADS];
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, allocating, (void *)at) == 0);
    for (int turn = 0; turn < FORKS; turn++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            after();
            exit(18);
        }
        expect_status(child, 18);
    }
    __atomic_store_n(&is_done, 1, __ATOMIC_RELEASE);
    for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
}

enum { MANY = 10000 };
static pthread_barrier_t all_are_there;

static void *one_of_many(void *unused) {
    void *block = allocated_after_the_fault(BYTES);
    paint(block, BYTES, 3);
    // All at the same time: nobody's state can be reused.
    pthread_barrier_wait(&all_are_there);
    CHECK(is_painted(block, BYTES, 3));
    free(block);
    free(allocated_after_the_fault(BYTES));
    return unused;
}

static void many_threads(void) {
    static pthread_t threads[MANY];
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 64 << 10) == 0);
    CHECK(pthread_barrier_init(&all_are_there, NULL, MANY) == 0);
    for (int at = 0; at < MANY; at++)
        if (pthread_create(&threads[at], &attributes, one_of_many, NULL) != 0) _exit(77);
    for (int at = 0; at < MANY; at++) CHECK(pthread_join(threads[at], NULL) == 0);
}

int main(int count, char **words) {
    CHECK(count == 2);
    const char *fault = words[1];
    before();
    say("before\n");
    if (!strcmp(fault, "stack_overflow")) return fall(0);
    if (!strcmp(fault, "stack_overflow_handled")) {
        handle(SIGSEGV, end_in_handler);
        return fall(0);
    }
    if (!strcmp(fault, "crash_in_handler")) {
        handle(SIGUSR1, crash_in_handler);
        raise(SIGUSR1);
    }
    if (!strcmp(fault, "abort_in_handler")) {
        handle(SIGSEGV, abort_in_handler);
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    if (!strcmp(fault, "daemon")) {
        daemon_under_a_shell();
    } else if (!strcmp(fault, "fork_among_threads")) {
        fork_among_threads();
    } else if (!strcmp(fault, "many_threads")) {
        many_threads();
    } else {
        if (!strcmp(fault, "setuid"))
            drop_root();
        else if (!strcmp(fault, "chroot"))
            change_root();
        else if (!strcmp(fault, "chdir"))
            CHECK(chdir("/proc") == 0);
        else if (!strcmp(fault, "setns"))
            enter_namespaces();
        else if (!strcmp(fault, "setns_user"))
            enter_user_namespace();
        else
            CHECK(!"a known fault");
        after();
    }
    say("after\n");
    return 0;
}
