/* Allocates in phases, each of which begins when a line comes in and is told of when it is over: phases BYTES. */
#include <stdio.h>
#include <stdlib.h>

#define NOINLINE __attribute__((noinline))
#define BLOCK 1000

static void *volatile sink;
static void *kept;

static void allocate(long bytes)
{
    for (long done = 0; done < bytes; done += BLOCK) {
        void *block = malloc(BLOCK);
        if (block == NULL)
            abort();
        sink = block;
        free(block);
    }
}

/* The counter keeps compilers from making one function of all. */
#define PHASE(NAME)                                                                                                    \
    static volatile long NAME##_calls;                                                                                 \
    static NOINLINE void NAME(long bytes)                                                                              \
    {                                                                                                                  \
        allocate(bytes);                                                                                               \
        NAME##_calls++;                                                                                                \
    }
PHASE(phase_first)
PHASE(phase_dense)
PHASE(phase_stopped)
PHASE(phase_again)

/* Sampled whatever the interval: 64 MiB. */
static NOINLINE void *keep_large(void)
{
    void *block = malloc(64l << 20);
    sink = block;
    return block;
}

int main(int argc, char **argv)
{
    static void (*const phases[])(long) = {phase_first, phase_dense, phase_stopped, phase_again};
    long bytes = argc > 1 ? atol(argv[1]) : 0;
    char line[16];
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        if (fgets(line, sizeof line, stdin) == NULL)
            return 1;
        if (i == 1)
            kept = keep_large();
        phases[i](bytes);
        if (i == 2)
            free(kept);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
