// Behaviour: signal handlers allocate whatever they interrupt, the allocator and an agent at work included.
// Needs an allocator that allows it: bump_allocator. Usage: signals_under_load [--jump]
// With --jump each handler leaves by siglongjmp, so that what it interrupted never goes on.
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

enum { THREADS = 4, SIGNALS = 3000, AFTERWARDS = 5000 };

static volatile int handled;
static int jumping;
static __thread sigjmp_buf back;
static __thread volatile sig_atomic_t may_jump;

NOINLINE void *allocated_in_the_handler(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *allocated_under_fire(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *allocated_afterwards(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void on_signal(int number) {
    int error = errno;
    void *block = allocated_in_the_handler(100);
    paint(block, 100, (unsigned)number);
    CHECK(is_painted(block, 100, (unsigned)number));
    free(block);
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    errno = error;
    if (jumping && may_jump) siglongjmp(back, 1);
}

static void *under_fire(void *unused) {
    // Volatile, for a jump out of a handler must not take the loop back to older values.
    volatile unsigned turns = 0;
    (void)!sigsetjmp(back, 1);
    may_jump = 1;
    while (__atomic_load_n(&handled, __ATOMIC_RELAXED) < SIGNALS) {
        size_t size = 1 + turns * 7 % 200;
        char *block = allocated_under_fire(size);
        paint(block, size, 5);
        block = realloc(block, size + 50);
        CHECK(is_painted(block, size, 5));
        free(block);
        turns = turns + 1;
        // The only way out for those whom the timers never find.
        if (turns % 64 == 0) pthread_kill(pthread_self(), SIGUSR1);
    }
    may_jump = 0;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (int turn = 0; turn < AFTERWARDS; turn++) free(allocated_afterwards(200));
    return unused;
}

int main(int count, char **words) {
    jumping = count > 1 && strcmp(words[1], "--jump") == 0;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && sigaction(SIGPROF, &action, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    struct itimerval often = {.it_interval = {.tv_usec = 500}, .it_value = {.tv_usec = 500}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0 && setitimer(ITIMER_PROF, &often, NULL) == 0);
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, under_fire, NULL) == 0);
    for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    struct itimerval never = {0};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && setitimer(ITIMER_PROF, &never, NULL) == 0);
    CHECK(handled >= SIGNALS);
    puts("every handler could allocate");
    return 0;
}
