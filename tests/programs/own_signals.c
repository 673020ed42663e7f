// Behaviour: every signal has the disposition and the mask that the program was started with, and its own handler later.
#include "check.h"

#include <pthread.h>
#include <signal.h>

static volatile sig_atomic_t caught[65];

static void on_signal(int number, siginfo_t *info, void *context) {
    CHECK(info->si_signo == number && context != NULL);
    caught[number]++;
}

static int is_ours_to_use(int number) {
    // 32 and 33 belong to the C library, the other two to nobody.
    return number != SIGKILL && number != SIGSTOP && number != 32 && number != 33;
}

static void *worker(void *unused) {
    sigset_t mask;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0);
    for (int number = 1; number <= 64; number++) CHECK(sigismember(&mask, number) != 1);
    churn(2000, 5000, 1);
    return unused;
}

// On the alternate stack for every other signal, and with others blocked that are near.
static struct sigaction action_of(int number) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | (number % 2 == 0 ? SA_ONSTACK : 0)};
    for (int other = number; other < number + 3; other++)
        if (other <= 64 && is_ours_to_use(other)) sigaddset(&action.sa_mask, other);
    return action;
}

static void check_action_of(int number) {
    struct sigaction expected = action_of(number), action;
    CHECK(sigaction(number, NULL, &action) == 0);
    CHECK(action.sa_sigaction == on_signal && (action.sa_flags & SA_ONSTACK) == (expected.sa_flags & SA_ONSTACK));
    for (int other = 1; other <= 64; other++)
        if (is_ours_to_use(other)) CHECK(sigismember(&action.sa_mask, other) == sigismember(&expected.sa_mask, other));
}

int main(void) {
    churn(2000, 5000, 1);
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    for (int number = 1; number <= 64; number++) {
        if (!is_ours_to_use(number)) continue;
        struct sigaction action;
        CHECK(sigaction(number, NULL, &action) == 0);
        printf("%d: %s%s\n", number, action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored" : "taken",
               sigismember(&mask, number) == 1 ? ", blocked" : "");
    }
    for (int number = 1; number <= 64; number++) {
        if (!is_ours_to_use(number)) continue;
        struct sigaction action = action_of(number);
        CHECK(sigaction(number, &action, NULL) == 0);
        check_action_of(number);
    }
    for (int turn = 1; turn <= 3; turn++) {
        for (int number = 1; number <= 64; number++) {
            if (!is_ours_to_use(number)) continue;
            churn(10, 5000, (unsigned)number);
            CHECK(raise(number) == 0);
            CHECK(caught[number] == turn);
        }
    }
    for (int number = 1; number <= 64; number++) {
        if (!is_ours_to_use(number)) continue;
        check_action_of(number);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, worker, NULL) == 0 && pthread_join(thread, NULL) == 0);
    // Blocked signals stay with the program until it asks for them.
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    CHECK(kill(getpid(), SIGUSR2) == 0);
    churn(2000, 5000, 3);
    CHECK(caught[SIGUSR2] == 3);
    siginfo_t info;
    CHECK(sigwaitinfo(&all, &info) == SIGUSR2);
    puts("every signal is the program's own");
    return 0;
}
