// Behaviour: a signal handler allocates more than a ring holds, then the program allocates once and ends.
// The signal is raised, so the handler interrupts nothing.
#include "check.h"

#include <signal.h>

enum { BLOCKS = 200000 };

NOINLINE static void allocate(void) {
    void *block = malloc(64);
    KEEP(block);
    free(block);
}

static void on_signal(int number) {
    (void)number;
    for (int i = 0; i < BLOCKS; i++)
        allocate();
}

int main(void) {
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
    CHECK(raise(SIGUSR1) == 0);
    allocate();
    printf("%d\n", BLOCKS + 1);
    return 0;
}
