// Behaviour: a process allocates 1000 blocks at one site, keeps 10 of them, and leaves by the door that is named.
// Usage: exits DOOR
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

enum { BLOCKS = 1000, KEPT = 10, BYTES = 4096 };

static void *kept[KEPT];

NOINLINE void *allocated_before_the_end(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void say(const char *text) { CHECK(write(1, text, strlen(text)) == (ssize_t)strlen(text)); }

static void at_exit(void) { say("atexit\n"); }
static void at_quick_exit_(void) { say("at_quick_exit\n"); }
__attribute__((destructor)) static void in_destructor(void) { say("destructor\n"); }

static void *sleeping(void *unused) {
    for (;;) pause();
    return unused;
}

static void *ending(void *unused) {
    // Main has gone; this thread is the last.
    churn(2000, 3000, 1);
    say("the last thread ends\n");
    return unused;
}

static void *exiting(void *unused) {
    churn(2000, 3000, 1);
    exit(21);
    return unused;
}

static void *immediately_exiting(void *unused) {
    churn(2000, 3000, 1);
    _exit(22);
    return unused;
}

static void *aborting(void *unused) {
    abort();
    return unused;
}

// Until main is a zombie, which is when the kernel says so.
static void wait_for_end_of_main(void) {
    char state = 'R';
    while (state != 'Z') {
        FILE *file = fopen("/proc/self/stat", "r");
        CHECK(file && fscanf(file, "%*d %*s %c", &state) == 1);
        fclose(file);
    }
}

static void *exiting_late(void *unused) {
    (void)unused;
    wait_for_end_of_main();
    exit(23);
}

static void *ending_late(void *unused) {
    wait_for_end_of_main();
    return ending(unused);
}

static void start(void *(*run)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
}

/* Also below `nohup`, whose children ignore SIGHUP. */
static void die_by(int number) {
    struct sigaction now;
    CHECK(sigaction(number, NULL, &now) == 0);
    if (now.sa_handler == SIG_IGN) signal(number, SIG_DFL);
    kill(getpid(), number);
    for (;;) pause();
}

static void on_terminate(int number) {
    (void)number;
    _exit(24);
}

int main(int count, char **words) {
    CHECK(count == 2);
    const char *door = words[1];
    CHECK(atexit(at_exit) == 0 && at_quick_exit(at_quick_exit_) == 0);
    for (int turn = 0; turn < BLOCKS; turn++) {
        void *block = allocated_before_the_end(BYTES);
        paint(block, BYTES, 1);
        if (turn < KEPT)
            kept[turn] = block;
        else
            free(block);
    }
    say("allocated\n");
    if (!strcmp(door, "return")) return 3;
    if (!strcmp(door, "exit")) exit(4);
    if (!strcmp(door, "_exit")) _exit(5);
    if (!strcmp(door, "_Exit")) _Exit(6);
    if (!strcmp(door, "exit_group")) syscall(SYS_exit_group, 7);
    if (!strcmp(door, "quick_exit")) quick_exit(8);
    if (!strcmp(door, "abort")) abort();
    if (!strcmp(door, "exit_with_threads")) {
        start(sleeping);
        start(sleeping);
        exit(9);
    }
    if (!strcmp(door, "last_thread")) {
        start(ending);
        pthread_exit(NULL);
    }
    if (!strcmp(door, "pthread_exit_alone")) pthread_exit(NULL);
    if (!strcmp(door, "raw_exit_alone")) syscall(SYS_exit, 7);
    // The agent's own thread is there after so much.
    if (!strcmp(door, "raw_exit_beside_agent")) {
        churn(100000, 3000, 1);
        syscall(SYS_exit, 7);
    }
    if (!strcmp(door, "raw_exit_before_last_thread")) {
        churn(100000, 3000, 1);
        start(ending_late);
        syscall(SYS_exit, 7);
    }
    if (!strcmp(door, "exit_after_main")) {
        start(exiting_late);
        pthread_exit(NULL);
    }
    if (!strcmp(door, "exit_in_thread")) {
        start(exiting);
        for (;;) pause();
    }
    if (!strcmp(door, "_exit_in_thread")) {
        start(immediately_exiting);
        for (;;) pause();
    }
    if (!strcmp(door, "abort_in_thread")) {
        start(aborting);
        for (;;) pause();
    }
    if (!strcmp(door, "sigterm")) die_by(SIGTERM);
    if (!strcmp(door, "sigterm_handled")) {
        signal(SIGTERM, on_terminate);
        die_by(SIGTERM);
    }
    if (!strcmp(door, "sigint")) {
        // A shell's background jobs are born with it ignored.
        signal(SIGINT, SIG_DFL);
        die_by(SIGINT);
    }
    if (!strcmp(door, "sighup")) die_by(SIGHUP);
    if (!strcmp(door, "sigkill")) die_by(SIGKILL);
    if (!strcmp(door, "sigsegv")) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    if (!strcmp(door, "sigfpe")) {
        volatile int one = 1, zero = 0;
        KEEP(one / zero);
        // Not every processor minds.
        die_by(SIGFPE);
    }
    if (!strcmp(door, "exec")) {
        execl("/bin/sh", "sh", "-c", "echo another program; exit 10", (char *)NULL);
        _exit(11);
    }
    if (!strcmp(door, "exec_that_fails_first")) {
        CHECK(execl("/no/such/program", "none", (char *)NULL) == -1 && errno == ENOENT);
        churn(1000, 3000, 1);
        execl(words[0], words[0], "return", (char *)NULL);
        _exit(11);
    }
    CHECK(!"a known door");
}
