// Behaviour: memory of an allocator of the program's own. Three functions touch as much as the arguments say, one gives back what it
// touched, and one thread leaks. Arguments: mode, factor. Prints how many pages each function has resident at the end.
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

// A bump allocator: arenas of 64 MiB.
static char *next_free, *arena_end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *take(size_t pages)
{
    enum { ARENA = 64 << 20 };
    size_t bytes = pages * PAGE;
    pthread_mutex_lock(&lock);
    if ((size_t)(arena_end - next_free) < bytes) {
        size_t length = bytes > ARENA ? bytes : ARENA;
        next_free = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(next_free != MAP_FAILED);
        arena_end = next_free + length;
    }
    char *taken = next_free;
    next_free += bytes;
    pthread_mutex_unlock(&lock);
    return taken;
}

// In the function that uses it: the fault is at the store.
#define WRITE_TO(pages, count)                                                                                         \
    for (size_t page = 0; page < (count); page++)                                                                      \
    ((volatile char *)(pages))[page * PAGE + page % PAGE] = 1


NOINLINE void touch_little(size_t count)
{
    char *pages = take(count);
    WRITE_TO(pages, count);
}
NOINLINE void touch_more(size_t count)
{
    char *pages = take(count);
    WRITE_TO(pages, count);
}
NOINLINE void touch_much(size_t count)
{
    char *pages = take(count);
    WRITE_TO(pages, count);
}
NOINLINE void touch_and_give_back(size_t count)
{
    char *pages = take(count);
    WRITE_TO(pages, count);
    CHECK(madvise(pages, count * PAGE, MADV_DONTNEED) == 0);
}
NOINLINE void touch_and_unmap(size_t count)
{
    char *pages = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    WRITE_TO(pages, count);
    CHECK(munmap(pages, count * PAGE) == 0);
}
NOINLINE void only_read(size_t count)
{
    volatile char *pages = take(count);
    char sum = 0;
    for (size_t page = 0; page < count; page++)
        sum |= pages[page * PAGE];
    CHECK(sum == 0);
}
NOINLINE void leak_on_thread(size_t count)
{
    char *pages = take(count);
    WRITE_TO(pages, count);
}

static void *leaking(void *factor)
{
    for (int round = 0; round < 8; round++)
        leak_on_thread(256 * (size_t)factor);
    return NULL;
}

static volatile sig_atomic_t own_signals;
static void on_own_signal(int signal)
{
    (void)signal;
    own_signals++;
}

static void block_everything(void)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
}

// A stack for signals of the program's own, on which it touches memory.
static void handle_on_own_stack(int signal)
{
    (void)signal;
    touch_little(64);
    own_signals++;
}

static void use_own_stack(void)
{
    static char room[64 << 10];
    stack_t stack = {.ss_sp = room, .ss_size = sizeof room};
    struct sigaction action = {.sa_handler = handle_on_own_stack, .sa_flags = SA_ONSTACK};
    sigfillset(&action.sa_mask);
    CHECK(sigaltstack(&stack, NULL) == 0);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 16; i++)
        CHECK(raise(SIGUSR1) == 0);
    CHECK(own_signals == 16);
}

static void work(size_t factor)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, leaking, (void *)factor) == 0);
    for (int round = 0; round < 16; round++) {
        touch_little(64 * factor);
        touch_and_give_back(512 * factor);
        touch_more(256 * factor);
        only_read(64 * factor);
        touch_much(512 * factor);
        touch_and_unmap(128 * factor);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    printf("touch_little %zu\ntouch_more %zu\ntouch_much %zu\nleak_on_thread %zu\n", 1024 * factor, 4096 * factor, 8192 * factor,
           2048 * factor);
    printf("touch_and_give_back 0\ntouch_and_unmap 0\nonly_read 0\n");
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    const char *mode = argv[1];
    size_t factor = strtoul(argv[2], NULL, 10);
    if (strcmp(mode, "blocked") == 0)
        block_everything();
    if (strcmp(mode, "stack") == 0)
        use_own_stack();
    if (strcmp(mode, "handler") == 0) {
        CHECK(signal(SIGTRAP, on_own_signal) == SIG_DFL);
        CHECK(signal(SIGSTKFLT, on_own_signal) == SIG_DFL);
        CHECK(raise(SIGTRAP) == 0 && raise(SIGSTKFLT) == 0);
    }
    if (strcmp(mode, "fork") == 0) {
        pid_t child = fork();
        int status = 1;
        if (child != 0) {
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            return 0;
        }
    }
    if (strcmp(mode, "exec") == 0) {
        touch_much(512 * factor);
        execl("/proc/self/exe", argv[0], "plain", argv[2], NULL);
        return 1;
    }
    work(factor);
    fflush(stdout);
    if (strcmp(mode, "killed") == 0)
        raise(SIGSTKFLT);
    if (strcmp(mode, "handler") == 0)
        CHECK(own_signals == 2);
    return 0;
}
