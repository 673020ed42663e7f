// Behaviour: threads allocate while others fork; children, grandchildren, vfork, posix_spawn and raw clone all work.
// Usage: fork_family threads|grandchildren|vfork|spawn|clone|system
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;

enum { THREADS = 4, FORKS = 50 };

static int done;

NOINLINE void *allocated_in_the_parent(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *allocated_in_the_child(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void *allocating(void *seed) {
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) churn(50, 3000, (unsigned)(size_t)seed);
    return NULL;
}

static void expect_status(pid_t child, int expected) {
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == expected);
}

// What a child does: allocate, free what the parent allocated, start a thread of its own, leave by exit.
static void live_as_child(void *inherited, int status) {
    CHECK(is_painted(inherited, 5000, 6));
    free(inherited);
    for (int turn = 0; turn < 500; turn++) free(allocated_in_the_child(2048));
    churn(200, 4000, (unsigned)status);
    pthread_t thread;
    done = 1;
    CHECK(pthread_create(&thread, NULL, allocating, (void *)3) == 0 && pthread_join(thread, NULL) == 0);
    exit(status);
}

static void fork_under_threads(void) {
    pthread_t threads[THREADS];
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, allocating, (void *)at) == 0);
    for (int turn = 0; turn < FORKS; turn++) {
        void *block = allocated_in_the_parent(5000);
        paint(block, 5000, 6);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) live_as_child(block, turn % 7);
        churn(100, 3000, (unsigned)turn);
        expect_status(child, turn % 7);
        CHECK(is_painted(block, 5000, 6));
        free(block);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
}

static void grandchildren(int generations) {
    for (int turn = 0; turn < 500; turn++) free(allocated_in_the_parent(3000));
    if (generations == 0) exit(11);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) grandchildren(generations - 1);
    churn(300, 3000, (unsigned)generations);
    expect_status(child, generations == 1 ? 11 : 12);
    if (generations < 4) exit(12);
}

// In a function of its own: what a vforked child does to local variables, it does to its parent's.
NOINLINE static pid_t vfork_one(int with_exec) {
    pid_t child = vfork();
    if (child != 0) return child;
    if (!with_exec) _exit(5);
    char *const words[] = {"sh", "-c", "exit 6", NULL};
    execve("/bin/sh", words, environ);
    _exit(7);
}

static void vforked(void) {
    for (int turn = 0; turn < FORKS; turn++) {
        free(allocated_in_the_parent(5000));
        expect_status(vfork_one(turn % 2), turn % 2 ? 6 : 5);
        churn(100, 3000, (unsigned)turn);
    }
}

static void spawned(void) {
    for (int turn = 0; turn < FORKS; turn++) {
        free(allocated_in_the_parent(5000));
        char *const words[] = {"sh", "-c", "exit 8", NULL};
        pid_t child;
        int error = turn % 2 ? posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ) : posix_spawnp(&child, "sh", NULL, NULL, words, environ);
        CHECK(error == 0);
        expect_status(child, 8);
    }
    pid_t child;
    char *const words[] = {"none", NULL};
    CHECK(posix_spawn(&child, "/no/such/program", NULL, NULL, words, environ) == ENOENT);
}

// The C library never hears of this child.
static void cloned(void) {
    for (int turn = 0; turn < FORKS; turn++) {
        void *block = allocated_in_the_parent(5000);
        paint(block, 5000, 6);
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(is_painted(block, 5000, 6));
            free(block);
            for (int at = 0; at < 300; at++) free(allocated_in_the_child(2048));
            if (turn % 2) syscall(SYS_exit_group, 9);
            exit(9);
        }
        churn(100, 3000, (unsigned)turn);
        expect_status(child, 9);
        free(block);
    }
}

static void by_system(void) {
    for (int turn = 0; turn < 20; turn++) {
        free(allocated_in_the_parent(5000));
        int status = system("exit 4");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 4);
        FILE *pipe = popen("echo from the shell", "r");
        char line[64] = "";
        CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "from the shell\n") == 0 && pclose(pipe) == 0);
    }
}

int main(int count, char **words) {
    CHECK(count == 2);
    alarm(100);
    if (strcmp(words[1], "threads") == 0)
        fork_under_threads();
    else if (strcmp(words[1], "grandchildren") == 0)
        grandchildren(4);
    else if (strcmp(words[1], "vfork") == 0)
        vforked();
    else if (strcmp(words[1], "spawn") == 0)
        spawned();
    else if (strcmp(words[1], "clone") == 0)
        cloned();
    else if (strcmp(words[1], "system") == 0)
        by_system();
    else
        CHECK(!"a known way");
    puts("every child ended as it should");
    return 0;
}
