/* Maps, unmaps and moves pages at random, on several threads, each in an area of its own; prints what is mapped at the end, and
 * by which of three functions: a line with start, bytes and function for each run of pages.
 *
 * usage: maps_at_random SEED STEPS [kill | slowly] */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 300, THREADS = 4, LONGEST = 40 };

struct area {
    char *start;
    char owner[PAGES]; /* 'r' for the reservation */
    uint64_t random;
    int steps;
    int pause_us;
};

static uint64_t next(struct area *area)
{
    area->random ^= area->random << 13;
    area->random ^= area->random >> 7;
    area->random ^= area->random << 17;
    return area->random;
}

#define MAPPER(NAME)                                                                                                   \
    __attribute__((noinline)) static void NAME(char *at, size_t bytes)                                                 \
    {                                                                                                                  \
        if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)             \
            abort();                                                                                                   \
        memset(at, 1, bytes);                                                                                          \
    }
MAPPER(map_a)
MAPPER(map_b)
MAPPER(map_c)

__attribute__((noinline)) static void move_page(char *from, char *to)
{
    if (mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
        abort();
}

static void *work(void *argument)
{
    struct area *area = argument;
    void (*const mappers[])(char *, size_t) = {map_a, map_b, map_c};
    for (int step = 0; step < area->steps; step++) {
        if (area->pause_us != 0)
            usleep((useconds_t)area->pause_us);
        size_t count = 1 + next(area) % LONGEST;
        size_t first = next(area) % (PAGES - count);
        char *at = area->start + first * PAGE;
        switch (next(area) % 5) {
        case 0:
        case 1:
        case 2: {
            unsigned which = next(area) % 3;
            /* The kernel takes whole pages for any length. */
            mappers[which](at, count * PAGE - next(area) % PAGE);
            memset(area->owner + first, 'a' + (int)which, count);
            break;
        }
        case 3:
            /* Some of it may not be mapped, and some may be several mappings. */
            munmap(at, count * PAGE - next(area) % PAGE);
            memset(area->owner + first, 0, count);
            break;
        default: {
            /* One page: neighbours by the same function may be several mappings. */
            size_t to = next(area) % PAGES;
            char owner = area->owner[first];
            if (to == first || owner < 'a' || owner > 'c')
                break;
            move_page(at, area->start + to * PAGE);
            area->owner[first] = 0;
            area->owner[to] = 'm';
            break;
        }
        }
    }
    return NULL;
}

static void print(const struct area *area)
{
    static const char *const names[] = {['a'] = "map_a", ['b'] = "map_b", ['c'] = "map_c", ['m'] = "move_page", ['r'] = "reserve"};
    for (size_t i = 0; i < PAGES;) {
        size_t end = i + 1;
        while (end < PAGES && area->owner[end] == area->owner[i])
            end++;
        if (area->owner[i] != 0)
            printf("%lu %lu %s\n", (unsigned long)(uintptr_t)(area->start + i * PAGE), (unsigned long)((end - i) * PAGE),
                   names[(unsigned char)area->owner[i]]);
        i = end;
    }
}

__attribute__((noinline)) static char *reserve(void)
{
    /* Far from where the kernel puts mappings of others: what they map into a hole here would be replaced. */
    static char *wanted = (char *)(UINT64_C(1) << 44);
    char *start = mmap(wanted, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    wanted += 1 << 30;
    if (start == MAP_FAILED)
        abort();
    return start;
}

int main(int count, char **arguments)
{
    static struct area areas[THREADS];
    pthread_t threads[THREADS];
    if (count < 3)
        return 2;
    /* A sample of its own, whatever the interval. */
    char *block = malloc(8 << 20);
    memset(block, 1, 8 << 20);
    for (int i = 0; i < THREADS; i++) {
        areas[i].start = reserve();
        areas[i].random = strtoull(arguments[1], NULL, 10) * 4 + (uint64_t)i + 1;
        areas[i].steps = atoi(arguments[2]);
        areas[i].pause_us = count > 3 && strcmp(arguments[3], "slowly") == 0 ? 1000 : 0;
        memset(areas[i].owner, 'r', PAGES);
        pthread_create(&threads[i], NULL, work, &areas[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        print(&areas[i]);
    fflush(stdout);
    if (count > 3 && strcmp(arguments[3], "kill") == 0)
        raise(SIGKILL);
    return block[5] - 1;
}
