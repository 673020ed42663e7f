// Behaviour: threads with the smallest stack allowed, and signal handlers on the smallest alternate stack, allocate.
#include "check.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

// What malloc itself may take of a stack: measured on glibc, jemalloc, tcmalloc and mimalloc, then doubled.
enum { FOR_MALLOC = 4096 };

static volatile sig_atomic_t handled;

NOINLINE void *allocated_on_a_small_stack(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void on_signal(int number) {
    (void)number;
    void *block = allocated_on_a_small_stack(3000);
    free(block);
    handled++;
}

static void *small_thread(void *unused) {
    for (int turn = 0; turn < 200; turn++) {
        void *block = allocated_on_a_small_stack(1 + (size_t)turn * 37);
        block = realloc(block, 5000);
        CHECK(block != NULL);
        free(block);
    }
    return unused;
}

// A mapping with a forbidden page below it: a stack that is too small is a crash, not luck.
static char *guarded(size_t bytes) {
    char *start = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED && mprotect(start, 4096, PROT_NONE) == 0);
    return start + 4096;
}

static void *signalled_thread(void *unused) {
    size_t least = (size_t)sysconf(_SC_MINSIGSTKSZ) + FOR_MALLOC;
    least = (least + 4095) / 4096 * 4096;
    stack_t alternate = {.ss_sp = guarded(least), .ss_size = least};
    CHECK(sigaltstack(&alternate, NULL) == 0);
    for (int turn = 0; turn < 200; turn++) CHECK(raise(SIGUSR1) == 0);
    return unused;
}

int main(void) {
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    if (least < 16384) least = 16384;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, least) == 0);
    for (int turn = 0; turn < 50; turn++) {
        pthread_t threads[4];
        for (int at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], &attributes, small_thread, NULL) == 0);
        for (int at = 0; at < 4; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, signalled_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    printf("%d signals handled on a small stack\n", (int)handled);
    return 0;
}
