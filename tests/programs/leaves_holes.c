/* Fills the heap with blocks that it frees, and with small ones that stay between them: two functions keep them, one of them
 * five times as many. Whole pages are free between some of them. Then prints "ready" and waits for the end of its input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 6000, PASSING = 6, BYTES = 700 };

static void *volatile passing[ROUNDS][PASSING];
static void *volatile kept[2 * ROUNDS];
static unsigned keeps;

__attribute__((noinline)) static void pass(unsigned round)
{
    for (unsigned i = 0; i < PASSING; i++)
        passing[round][i] = calloc(1, BYTES);
}

__attribute__((noinline)) static void keep_often(void)
{
    kept[keeps++] = calloc(1, 56);
}

__attribute__((noinline)) static void keep_seldom(void)
{
    kept[keeps++] = calloc(1, 120);
}

int main(void)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        pass(round);
        /* The last sixth keeps nothing: it is free in one piece, below a block that stays. */
        if (round >= ROUNDS - ROUNDS / 6)
            continue;
        if (round % 6 == 0)
            keep_seldom();
        else
            keep_often();
    }
    keep_seldom();
    for (unsigned round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < PASSING; i++)
            free(passing[round][i]);
    if (write(STDOUT_FILENO, "ready\n", 6) != 6)
        return 1;
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    return keeps == 0;
}
