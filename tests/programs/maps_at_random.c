/* Maps, unmaps and moves pages, and changes their rights, at random, on several threads, each in an area of its own; prints what is
 * mapped at the end, and by which function: a line with start, bytes and function for each run of pages. A page of a reservation
 * belongs to the function that made it usable.
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
    char committed[PAGES]; /* the function that made it usable; 'u': it was mapped so; 0: it is not usable, or not reserved */
    char reserved[PAGES];
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

#define COMMITTER(NAME)                                                                                                \
    __attribute__((noinline)) static void NAME(char *at, size_t bytes)                                                 \
    {                                                                                                                  \
        if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)                                                          \
            abort();                                                                                                   \
        memset(at, 1, bytes);                                                                                          \
    }
COMMITTER(commit_a)
COMMITTER(commit_b)

/* Pages from `first` on that are mapped, up to `count`: a call of mprotect that meets a hole fails in the middle. */
static size_t mapped_pages(const struct area *area, size_t first, size_t count)
{
    size_t pages = 0;
    while (pages < count && area->owner[first + pages] != 0)
        pages++;
    return pages;
}

static void change_rights(struct area *area, size_t first, size_t count)
{
    char *at = area->start + first * PAGE;
    unsigned which = next(area) % 4;
    if (count == 0)
        return;
    if (which == 3) {
        /* As a compiler does with its code, or a collector with its old objects. */
        if (mprotect(at, count * PAGE, PROT_READ) != 0 || madvise(at, PAGE, MADV_DONTNEED) != 0)
            abort();
        return;
    }
    if (which == 2) {
        if (mprotect(at, count * PAGE, PROT_NONE) != 0)
            abort();
        memset(area->committed + first, 0, count);
        return;
    }
    (which == 0 ? commit_a : commit_b)(at, count * PAGE);
    for (size_t i = first; i < first + count; i++)
        if (area->reserved[i] && area->committed[i] == 0)
            area->committed[i] = which == 0 ? 'd' : 'e';
}

/* A mapping by `owner` takes the place of what was there; none if it is 0. */
static void replace(struct area *area, size_t first, size_t count, char owner)
{
    for (size_t i = first; i < first + count; i++) {
        area->owner[i] = owner;
        area->reserved[i] = area->reserved[i] && owner != 0;
        area->committed[i] = area->reserved[i] ? 'u' : 0;
    }
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
        switch (next(area) % 8) {
        case 0:
        case 1:
        case 2: {
            unsigned which = next(area) % 3;
            /* The kernel takes whole pages for any length. */
            mappers[which](at, count * PAGE - next(area) % PAGE);
            replace(area, first, count, (char)('a' + which));
            break;
        }
        case 3:
            /* Some of it may not be mapped, and some may be several mappings. */
            munmap(at, count * PAGE - next(area) % PAGE);
            replace(area, first, count, 0);
            break;
        case 4:
        case 5:
        case 6:
            change_rights(area, first, mapped_pages(area, first, count));
            break;
        default: {
            /* One page: neighbours by the same function may be several mappings. */
            size_t to = next(area) % PAGES;
            char owner = area->owner[first];
            if (to == first || owner < 'a' || owner > 'c')
                break;
            move_page(at, area->start + to * PAGE);
            replace(area, first, 1, 0);
            replace(area, to, 1, 'm');
            break;
        }
        }
    }
    return NULL;
}

static void print(const struct area *area)
{
    static const char *const names[] = {['a'] = "map_a", ['b'] = "map_b", ['c'] = "map_c", ['m'] = "move_page",
                                        ['d'] = "commit_a", ['e'] = "commit_b", ['r'] = "reserve"};
    char owner[PAGES];
    for (size_t i = 0; i < PAGES; i++)
        owner[i] = area->committed[i] == 0 || area->committed[i] == 'u' ? area->owner[i] : area->committed[i];
    for (size_t i = 0; i < PAGES;) {
        size_t end = i + 1;
        while (end < PAGES && owner[end] == owner[i])
            end++;
        if (owner[i] != 0)
            printf("%lu %lu %s\n", (unsigned long)(uintptr_t)(area->start + i * PAGE), (unsigned long)((end - i) * PAGE),
                   names[(unsigned char)owner[i]]);
        i = end;
    }
}

__attribute__((noinline)) static char *reserve(void)
{
    /* Far from where the kernel puts mappings of others: what they map into a hole here would be replaced. */
    static char *wanted = (char *)(UINT64_C(1) << 44);
    char *start = mmap(wanted, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    /* The next one begins a page behind it. */
    wanted += (PAGES + 1) * PAGE;
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
        memset(areas[i].reserved, 1, PAGES);
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
