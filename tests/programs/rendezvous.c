// Behaviour: threads that do, for ever, what the C library does to all threads of a process or under locks of its own.
// Usage: rendezvous PLUGIN WORK..., of ids, cancel, threads, fork, load; each is a thread.
// Lines: turn (answered when each thread has come round again), end (the exit status is 3).
// A process in which one of these never comes back is ended by SIGALRM.
#include "check.h"

#include <dlfcn.h>
#include <grp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>

enum { PATIENCE_S = 300, MOST = 8 };
static const char *plugin;
static atomic_bool is_over;
static _Atomic unsigned long turns[MOST];

static void *nothing(void *argument) {
    return argument;
}
static void *leaves(void *argument) {
    pthread_exit(argument);
}
static void *waits(void *argument) {
    for (;;) {
        struct timespec time = {.tv_sec = 1000};
        nanosleep(&time, NULL);
    }
    return argument;
}

static void change_ids(void) {
    CHECK(seteuid(geteuid()) == 0);
    CHECK(setegid(getegid()) == 0);
    CHECK(setresuid((uid_t)-1, geteuid(), (uid_t)-1) == 0);
    gid_t group = getegid();
    CHECK(geteuid() != 0 || setgroups(1, &group) == 0);
}

static void cancel(void) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

static void make_threads(void) {
    static int status;
    pthread_t first, second;
    void *result;
    CHECK(pthread_create(&first, NULL, nothing, &status) == 0);
    CHECK(pthread_create(&second, NULL, leaves, &status) == 0);
    CHECK(pthread_join(first, &result) == 0 && result == &status);
    CHECK(pthread_join(second, &result) == 0 && result == &status);
}

static void make_a_child(void) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pthread_t thread;
        free(malloc(1000));
        if (seteuid(geteuid()) != 0 || pthread_create(&thread, NULL, nothing, NULL) != 0) _exit(1);
        _exit(pthread_join(thread, NULL) == 0 ? 9 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

static void load(void) {
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL && dlsym(library, "plugin_entry") != NULL);
    CHECK(dlclose(library) == 0);
}

static const struct work {
    const char *name;
    void (*once)(void);
} works[] = {{"ids", change_ids}, {"cancel", cancel}, {"threads", make_threads}, {"fork", make_a_child}, {"load", load}};

struct worker {
    pthread_t thread;
    void (*once)(void);
    _Atomic unsigned long *turns;
};
static void *worker(void *argument) {
    struct worker *worker = argument;
    while (!is_over) {
        worker->once();
        free(malloc(1000));
        ++*worker->turns;
    }
    return NULL;
}

int main(int words, char **word) {
    static struct worker workers[MOST];
    char line[64];
    int count = 0;
    CHECK(words > 2 && words - 2 <= MOST);
    plugin = word[1];
    alarm(PATIENCE_S);
    for (int at = 2; at < words; at++) {
        for (size_t i = 0; i < sizeof works / sizeof works[0]; i++)
            if (!strcmp(word[at], works[i].name)) workers[count].once = works[i].once;
        CHECK(workers[count].once != NULL);
        workers[count].turns = &turns[count];
        count++;
    }
    for (int i = 0; i < count; i++) CHECK(pthread_create(&workers[i].thread, NULL, worker, &workers[i]) == 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3)) {
        alarm(PATIENCE_S);
        for (int i = 0; i < count; i++) {
            struct timespec time = {.tv_nsec = 100000};
            for (unsigned long before = turns[i]; turns[i] < before + 2;) nanosleep(&time, NULL);
        }
        puts("done");
    }
    is_over = true;
    for (int i = 0; i < count; i++) CHECK(pthread_join(workers[i].thread, NULL) == 0);
    return 3;
}
