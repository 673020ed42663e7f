// Behaviour: stops its threads by signals again and again while they allocate, as garbage collectors do, and looks where their stack
// pointers are. Arguments: the signal that stops a thread, the one that continues it; 0 for the first real-time signals.
#include "check.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define THREADS 3
#define STOPS 400

static struct worker {
    pthread_t thread;
    uintptr_t low, high;
} workers[THREADS];

static _Thread_local struct worker *this_worker;
static sem_t stopped;
static atomic_int round_number, outside;
static atomic_bool is_over;
static int stop_signal, go_signal;

static void on_stop(int signal) {
    char here;
    int now = atomic_load(&round_number);
    (void)signal;
    if ((uintptr_t)&here < this_worker->low || (uintptr_t)&here >= this_worker->high) atomic_fetch_add(&outside, 1);
    sem_post(&stopped);
    sigset_t others;
    sigfillset(&others);
    sigdelset(&others, go_signal);
    while (atomic_load(&round_number) == now) sigsuspend(&others);
}

static void on_go(int signal) {
    (void)signal;
}

static void *work(void *argument) {
    this_worker = argument;
    pthread_attr_t attributes;
    void *low;
    size_t bytes;
    CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0);
    CHECK(pthread_attr_getstack(&attributes, &low, &bytes) == 0);
    pthread_attr_destroy(&attributes);
    this_worker->low = (uintptr_t)low;
    this_worker->high = (uintptr_t)low + bytes;
    sem_post(&stopped);
    while (!atomic_load(&is_over)) {
        void *block = malloc(100);
        CHECK(block != NULL);
        KEEP(block);
        free(block);
    }
    return NULL;
}

static void handle(int signal, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static void wait_for_all(void) {
    for (int i = 0; i < THREADS; i++)
        while (sem_wait(&stopped) != 0) {
        }
}

int main(int count, char **arguments) {
    CHECK(count == 3 && sem_init(&stopped, 0, 0) == 0);
    stop_signal = atoi(arguments[1]) == 0 ? SIGRTMIN : atoi(arguments[1]);
    go_signal = atoi(arguments[2]) == 0 ? SIGRTMIN + 1 : atoi(arguments[2]);
    handle(stop_signal, on_stop);
    handle(go_signal, on_go);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    wait_for_all();
    for (int stop = 0; stop < STOPS; stop++) {
        for (int i = 0; i < THREADS; i++) CHECK(pthread_kill(workers[i].thread, stop_signal) == 0);
        wait_for_all();
        atomic_fetch_add(&round_number, 1);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_kill(workers[i].thread, go_signal) == 0);
    }
    atomic_store(&is_over, true);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(workers[i].thread, NULL) == 0);
    printf("outside: %d of %d\n", atomic_load(&outside), STOPS * THREADS);
    return atomic_load(&outside) != 0;
}
