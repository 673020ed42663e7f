// Behaviour: a signal handler allocates more than any buffer holds, then main goes on to allocate.
#include "check.h"

#include <signal.h>

NOINLINE void *allocated_in_all(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

static void on_signal(int number) {
    (void)number;
    for (int at = 0; at < 100000; at++) free(allocated_in_all(100));
}

int main(void) {
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
    CHECK(raise(SIGUSR1) == 0);
    for (int at = 0; at < 100000; at++) free(allocated_in_all(100));
    puts("handled");
    return 0;
}
