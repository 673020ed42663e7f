// A program that uses every signal there is: finds them as nobody handles them, has timers of its own, handles all
// real-time signals, blocks all and waits for all, and sleeps without being woken. Prints what it saw.
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static _Atomic(int) seen[65];
static volatile unsigned sink;

static void handler(int signal)
{
    seen[signal]++;
}

static void spin_ms(long ms)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    do {
        for (unsigned i = 0; i < 50000; i++)
            sink += i;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < ms);
}

// Blocks all, works, and waits for a signal that it gets: no other may come.
static void *waits_for_all(void *argument)
{
    (void)argument;
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    for (int turn = 0; turn < 20; turn++) {
        spin_ms(5);
        CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
        int got = 0;
        CHECK(sigwait(&all, &got) == 0);
        CHECK(got == SIGUSR1);
        CHECK(pthread_kill(pthread_self(), SIGUSR2) == 0);
        siginfo_t info;
        CHECK(sigwaitinfo(&all, &info) == SIGUSR2);
        struct timespec none = {0};
        CHECK(sigtimedwait(&all, &info, &none) == -1 && errno == EAGAIN);
        int fd = signalfd(-1, &all, SFD_NONBLOCK);
        struct signalfd_siginfo read_info;
        CHECK(read(fd, &read_info, sizeof read_info) == -1 && errno == EAGAIN);
        close(fd);
    }
    return NULL;
}

static int of_c11(void *argument)
{
    spin_ms(20);
    return *(int *)argument;
}

int main(void)
{
    // Others may be ignored from outside.
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++) {
        struct sigaction action;
        CHECK(sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    }
    struct sigaction action = {.sa_handler = handler};
    // Its own profiler's clock.
    CHECK(sigaction(SIGPROF, &action, NULL) == 0);
    struct itimerval every = {.it_interval.tv_usec = 2000, .it_value.tv_usec = 2000};
    CHECK(setitimer(ITIMER_PROF, &every, NULL) == 0);
    // The kernel looks at the clock at its own ticks, which a thread may hardly meet while others compete with it.
    for (int turn = 0; turn < 50 && seen[SIGPROF] <= 5; turn++)
        spin_ms(100);
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_PROF, &every, NULL) == 0);
    CHECK(seen[SIGPROF] > 5);
    // Calls that a handler would interrupt, whatever SA_RESTART says.
    struct timespec moment = {.tv_nsec = 2000000};
    for (int turn = 0; turn < 20; turn++) {
        spin_ms(3);
        CHECK(poll(NULL, 0, 2) == 0);
        CHECK(nanosleep(&moment, NULL) == 0);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waits_for_all, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    int expected = 7, result = 0;
    thrd_t other;
    CHECK(thrd_create(&other, of_c11, &expected) == thrd_success);
    CHECK(thrd_join(other, &result) == thrd_success && result == 7);
    // All of them at last, one after the other; a tick may be any of these until then.
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++) {
        struct sigaction before;
        CHECK(sigaction(signal, &action, &before) == 0 && before.sa_handler == SIG_DFL);
        spin_ms(5);
        CHECK(seen[signal] == 0);
        raise(signal);
        CHECK(seen[signal] == 1);
        CHECK(sigaction(signal, NULL, &before) == 0 && before.sa_handler == handler);
    }
    spin_ms(50);
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
        CHECK(seen[signal] == 1);
    puts("all signals are its own");
    return 0;
}
