// Behaviour: coroutines of ucontext, on stacks that are unmapped as soon as they have ended, allocate and free each
// other's blocks. Usage: ucontext SECONDS; prints how many rounds were right.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { STACK_BYTES = 32 << 10, COROUTINES = 50, SWITCHES = 20 };

static ucontext_t scheduler, contexts[COROUTINES];
static char *blocks[COROUTINES];

static void allocate(int number, int turn)
{
    size_t size = 16 + (size_t)(number * 37 + turn * 101) % 3000;
    char *block = malloc(size);
    memset(block, number, size);
    int other = (number + turn) % COROUTINES;
    if (blocks[other] && blocks[other][0] != (char)other) {
        puts("wrong");
        exit(1);
    }
    free(blocks[other]);
    blocks[other] = NULL;
    free(blocks[number]);
    blocks[number] = block;
}

static void deeper(int depth, int number, int turn)
{
    volatile char room[64];
    room[0] = (char)depth;
    if (depth == 0)
        allocate(number, turn);
    else
        deeper(depth - 1, number, turn);
    room[1] = room[0];
}

static void run(int number)
{
    for (int turn = 0; turn < SWITCHES; turn++) {
        deeper(number % 20, number, turn);
        swapcontext(&contexts[number], &scheduler);
    }
}

int main(int count, char **words)
{
    time_t end = time(NULL) + (count > 1 ? atoi(words[1]) : 1);
    unsigned long rounds = 0;
    for (; time(NULL) < end; rounds++) {
        void *stacks[COROUTINES];
        for (int number = 0; number < COROUTINES; number++) {
            stacks[number] = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (stacks[number] == MAP_FAILED || getcontext(&contexts[number]) != 0)
                return 1;
            contexts[number].uc_stack.ss_sp = stacks[number];
            contexts[number].uc_stack.ss_size = STACK_BYTES;
            contexts[number].uc_link = NULL;
            makecontext(&contexts[number], (void (*)(void))run, 1, number);
        }
        for (int turn = 0; turn < SWITCHES; turn++)
            for (int number = 0; number < COROUTINES; number++)
                swapcontext(&scheduler, &contexts[number]);
        // Each is in the middle of its last switch: its stack goes as it is.
        for (int number = 0; number < COROUTINES; number++)
            munmap(stacks[number], STACK_BYTES);
    }
    printf("right: %lu\n", rounds);
    return 0;
}
