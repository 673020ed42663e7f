// Behaviour: a thread that waits as setuid does in the C library, for a thread that is being created to run, while it holds a
// lock that dlopen takes; nothing ends that but a store to the word at which it waits.
// Lines: turn (answered when that thread has come out), end (the exit status is 3).
#include "check.h"

#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>

enum { AWAITED = -2, WAITING = 1 };
static _Atomic int word = AWAITED;
static _Atomic int is_waiting;

static int wait_with_the_lock(struct dl_phdr_info *info, size_t size, void *unused) {
    // What is on the stack when the C library waits: where setuid goes on.
    volatile uintptr_t caller = (uintptr_t)seteuid + 8;
    (void)info, (void)size, (void)unused;
    is_waiting = WAITING;
    while (word == AWAITED) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, AWAITED, NULL, NULL, 0);
    CHECK(word == 0 && caller != 0);
    return 1;
}

static void *waits(void *unused) {
    CHECK(dl_iterate_phdr(wait_with_the_lock, unused) == 1);
    return NULL;
}

int main(void) {
    char line[64];
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    while (is_waiting != WAITING) sched_yield();
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3)) {
        if (thread != 0) CHECK(pthread_join(thread, NULL) == 0);
        thread = 0;
        puts("done");
    }
    return 3;
}
