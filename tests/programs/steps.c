// Behaviour: does a step each time that a line comes in, and allocates a little while it waits. A step allocates BLOCKS
// blocks below 1,024 bytes in step() and keeps each hundredth; half of what the step before kept is freed. With a second argument it forks at
// the step of that number, and the child does a step of its own and exits.
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BLOCKS = 20000, EACH = 100, KEPT = BLOCKS / EACH };

static void *kept[KEPT];
static unsigned seed = 1;

NOINLINE static void *step(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE static void *idle(void) {
    void *block = malloc(4096);
    KEEP(block);
    return block;
}

static void do_step(void) {
    for (int i = 0; i < KEPT; i += 2) free(kept[i]);
    for (int i = 0; i < BLOCKS; i++) {
        void *block = step(1 + next_random(&seed) % 1023);
        CHECK(block != NULL);
        if (i % EACH == 0)
            kept[i / EACH] = block;
        else
            free(block);
    }
}

int main(int argc, char **argv) {
    int fork_at = argc > 1 ? atoi(argv[1]) : 0;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (int number = 1;; number++) {
        char line[16];
        int ready;
        while ((ready = poll(&input, 1, 1)) == 0) free(idle());
        // Past stdio, which would read ahead of poll.
        ssize_t length = read(STDIN_FILENO, line, 1);
        if (ready < 0 || length <= 0) return 0;
        do_step();
        if (number == fork_at) {
            pid_t child = fork();
            if (child == 0) {
                do_step();
                return 0;
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        CHECK(write(STDOUT_FILENO, "d", 1) == 1);
    }
}
