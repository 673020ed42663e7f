/* Allocates and frees at random on several threads until they all wait at a barrier, then prints what malloc itself says of its
 * heap, and waits. For every line on its standard input it calls malloc_trim(0) and prints the resident bytes before and after.
 *
 * usage: heap_at_rest SEED THREADS STEPS LARGEST */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 4096, MOST_THREADS = 64 };

struct worker {
    uint64_t seed;
    void *blocks[SLOTS];
};

static struct worker workers[MOST_THREADS];
static unsigned steps, largest;
static pthread_barrier_t barrier;

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Sizes of all magnitudes up to the largest. */
static size_t random_size(uint64_t *seed)
{
    size_t most = largest >> next(seed) % 12;
    return next(seed) % (most + 1);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (unsigned step = 0; step < steps; step++) {
        void **block = &worker->blocks[next(&worker->seed) % SLOTS];
        size_t size = random_size(&worker->seed);
        switch (next(&worker->seed) % 8) {
        case 0:
            *block = realloc(*block, size + 1);
            break;
        case 1:
            free(*block);
            *block = memalign((size_t)32 << next(&worker->seed) % 9, size);
            break;
        case 2:
        case 3:
            free(*block);
            *block = NULL;
            continue;
        default:
            free(*block);
            *block = malloc(size);
        }
        /* A page that is only read is the kernel's zero page, and not resident. */
        memset(*block, 0xa5, size);
    }
    pthread_barrier_wait(&barrier);
    pause();
    return NULL;
}

static unsigned long long resident(void)
{
    char text[128] = "";
    unsigned long long size, pages;
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0)
        abort();
    close(file);
    if (sscanf(text, "%llu %llu", &size, &pages) != 2)
        abort();
    return pages * (unsigned long long)sysconf(_SC_PAGESIZE);
}

static void print(const char *text)
{
    if (write(STDOUT_FILENO, text, strlen(text)) < 0)
        _exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    unsigned threads = (unsigned)atoi(argv[2]);
    steps = (unsigned)atoi(argv[3]);
    largest = (unsigned)atoi(argv[4]);
    if (threads > MOST_THREADS)
        return 2;
    pthread_barrier_init(&barrier, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++) {
        pthread_t thread;
        workers[i].seed = 0x9E3779B97F4A7C15 * (uint64_t)(1 + atoi(argv[1])) + i;
        if (pthread_create(&thread, NULL, work, &workers[i]) != 0)
            return 1;
    }
    pthread_barrier_wait(&barrier);
    unsigned long long blocks = 0, bytes = 0;
    for (unsigned i = 0; i < threads; i++)
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            size_t usable = malloc_usable_size(workers[i].blocks[slot]);
            if (usable == 0 || usable + 8 >= 128 << 10)
                continue;
            blocks++;
            bytes += usable + 8;
        }
    /* Whatever these need, they have it before malloc is asked. */
    resident();
    struct mallinfo2 info = mallinfo2();
    char text[512];
    snprintf(text, sizeof text,
             "{\"arena\":%zu,\"uordblks\":%zu,\"fordblks\":%zu,\"fsmblks\":%zu,\"hblkhd\":%zu,\"blocks\":%llu,"
             "\"block_bytes\":%llu}\n",
             info.arena, info.uordblks, info.fordblks, info.fsmblks, info.hblkhd, blocks, bytes);
    print(text);
    char line[16];
    while (read(STDIN_FILENO, line, sizeof line) > 0) {
        unsigned long long before = resident();
        malloc_trim(0);
        snprintf(text, sizeof text, "{\"before\":%llu,\"after\":%llu}\n", before, resident());
        print(text);
    }
    return 0;
}
