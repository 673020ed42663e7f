/* Reserves memory and makes parts of it usable, changes rights of what is usable, moves the break, and discards memory; prints the
 * address of the reservation. With `wait`, it says `ready` when it has reserved, and waits for a line on its input; then for another
 * one, before it ends.
 *
 * usage: reserves [wait] */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20, FLIPS = 20000 };

static void check(int result)
{
    if (result != 0)
        abort();
}

__attribute__((noinline)) static char *reserve(void)
{
    char *at = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

__attribute__((noinline)) static void commit_first(char *at, size_t bytes)
{
    check(mprotect(at, bytes, PROT_READ | PROT_WRITE));
    memset(at, 1, bytes);
}

__attribute__((noinline)) static void commit_again(char *at, size_t bytes)
{
    check(mprotect(at, bytes, PROT_READ | PROT_WRITE | PROT_EXEC));
    memset(at, 1, bytes);
}

__attribute__((noinline)) static void give_back(char *at, size_t bytes)
{
    check(madvise(at, bytes, MADV_DONTNEED));
    check(mprotect(at, bytes, PROT_NONE));
}

__attribute__((noinline)) static void raise_break(void)
{
    char *end = sbrk(0);
    check(brk(end + 3 * MIB));
    memset(end, 1, 3 * MIB);
    check(brk(end + 2 * MIB));
}

static void wait_for_a_line(const char *said)
{
    puts(said);
    fflush(stdout);
    while (getchar() != '\n')
        continue;
}

int main(int count, char **arguments)
{
    char *block = malloc(2 * MIB);
    memset(block, 1, 2 * MIB);
    char *at = reserve();
    bool waits = count > 1 && strcmp(arguments[1], "wait") == 0;
    if (waits)
        wait_for_a_line("ready");
    commit_first(at, 2 * MIB);
    commit_first(at + 8 * MIB, 4 * MIB);
    /* All of it is usable but for 4 MiB. */
    commit_again(at, 8 * MIB + 4 * MIB);
    for (int i = 0; i < FLIPS; i++) {
        check(mprotect(at, MIB, PROT_READ | PROT_EXEC));
        check(mprotect(at, MIB, PROT_READ | PROT_WRITE));
    }
    give_back(at + 9 * MIB, MIB);
    raise_break();
    char address[32];
    snprintf(address, sizeof address, "%lu", (unsigned long)at);
    if (waits)
        wait_for_a_line(address);
    else
        puts(address);
    return block[7] - 1;
}
