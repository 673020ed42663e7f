// Behaviour: a program under tight resource limits, set by itself or before it started, goes on as if it were alone.
// Usage: limits fsize|as|nofile|nproc before|inside
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

NOINLINE void *allocated_under_the_limit(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void limit(int which, rlim_t value) {
    struct rlimit limits = {value, value};
    CHECK(setrlimit(which, &limits) == 0);
}

static void set_limits(const char *name, int is_before) {
    if (!strcmp(name, "fsize")) limit(RLIMIT_FSIZE, 65536);
    if (!strcmp(name, "as")) limit(RLIMIT_AS, 256 << 20);
    if (!strcmp(name, "nofile")) limit(RLIMIT_NOFILE, is_before ? 4 : 3);
    if (!strcmp(name, "nproc")) {
        // Root has no such limit. It holds for all threads of the user: there must be none yet.
        limit(RLIMIT_NPROC, 0);
        CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    }
}

static volatile sig_atomic_t too_large;

static void on_too_large(int number) {
    (void)number;
    too_large++;
}

static void own_file_hits_its_limit(void) {
    char name[] = "/tmp/limits-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    CHECK(signal(SIGXFSZ, on_too_large) != SIG_ERR);
    static char page[4096];
    for (int at = 0; at < 16; at++) CHECK(write(file, page, sizeof page) == sizeof page);
    CHECK(too_large == 0);
    CHECK(write(file, page, sizeof page) == -1 && errno == EFBIG);
    CHECK(too_large == 1);
    close(file);
}

static void memory_runs_out(void) {
    static void *blocks[4096];
    int held = 0;
    while (held < 4096) {
        errno = 0;
        blocks[held] = allocated_under_the_limit(1 << 20);
        if (!blocks[held]) break;
        memset(blocks[held], 1, 4096);
        held++;
    }
    CHECK(held > 10 && held < 4096 && errno == ENOMEM);
    // Small ones run out too, and nothing breaks.
    int small = 0;
    void *list = NULL;
    for (;;) {
        void **block = allocated_under_the_limit(2000);
        if (!block) break;
        *block = list;
        list = block;
        small++;
    }
    while (list) {
        void *next = *(void **)list;
        free(list);
        list = next;
    }
    while (held) free(blocks[--held]);
    CHECK(small > 0);
    void *again = malloc(10 << 20);
    CHECK(again != NULL);
    free(again);
}

static void *do_nothing(void *unused) { return unused; }

int main(int count, char **words) {
    CHECK(count == 3);
    if (!strcmp(words[2], "before")) {
        set_limits(words[1], 1);
        execl(words[0], words[0], words[1], "set", (char *)NULL);
        CHECK(!"started again");
    }
    if (!strcmp(words[2], "inside")) {
        churn(20000, 3000, 1);
        set_limits(words[1], 0);
    }
    for (int turn = 0; turn < 5000; turn++) free(allocated_under_the_limit(1 + (size_t)turn * 3));
    if (!strcmp(words[1], "fsize")) own_file_hits_its_limit();
    if (!strcmp(words[1], "as")) memory_runs_out();
    if (!strcmp(words[1], "nofile")) {
        // The loader needs one to start a program; that one is free now.
        if (!strcmp(words[2], "set")) CHECK(open("/dev/null", O_RDONLY) == 3);
        CHECK(open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
        CHECK(fopen("/dev/null", "r") == NULL);
    }
    if (!strcmp(words[1], "nproc")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, do_nothing, NULL) == EAGAIN);
        CHECK(fork() == -1 && errno == EAGAIN);
    }
    churn(20000, 3000, 2);
    puts("lived within the limits");
    return 0;
}
