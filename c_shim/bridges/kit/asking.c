/* See asking.h. */
#define _GNU_SOURCE
#include "kit/asking.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define PATIENCE_NS 500000000L

static _Atomic(bool) is_asking;
static bool has_given_up;

static void *run(void *work)
{
    void (*ask)(void);
    memcpy(&ask, &work, sizeof ask);
    shim_mute();
    ask();
    return NULL;
}

static bool start(pthread_t *thread, void (*ask)(void))
{
    sigset_t all, before;
    void *work;
    memcpy(&work, &ask, sizeof work);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, work);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

bool asking_run(void (*ask)(void))
{
    pthread_t thread;
    if (has_given_up)
        return false;
    atomic_store(&is_asking, true);
    bool is_started = start(&thread, ask);
    if (is_started) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PATIENCE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        has_given_up = pthread_timedjoin_np(thread, NULL, &until) != 0;
        if (has_given_up)
            pthread_detach(thread);
    }
    atomic_store(&is_asking, false);
    return is_started && !has_given_up;
}

void asking_after_fork_in_child(void)
{
    if (atomic_exchange(&is_asking, false))
        has_given_up = true;
}
