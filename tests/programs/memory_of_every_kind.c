/* Holds memory of every kind, in amounts that are known, and ends a while later. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCK = 16 << 10, BLOCKS = 16 * MIB / BLOCK, THREADS = 8 };

static char data[4 * MIB];

__attribute__((noinline)) static char *map_often(void)
{
    char *at = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, 4 * MIB);
    return at;
}

__attribute__((noinline)) static char *map_and_grow(void)
{
    char *at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at = mremap(at, MIB, 8 * MIB, MREMAP_MAYMOVE);
    memset(at, 1, 8 * MIB);
    return at;
}

__attribute__((noinline)) static char *share(void)
{
    char *at = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(at, 1, 8 * MIB);
    return at;
}

static pthread_barrier_t all_there;

static void *wait_on_a_deep_stack(void *argument)
{
    volatile char deep[256 << 10];
    for (size_t i = 0; i < sizeof deep; i += 4096)
        deep[i] = 1;
    pthread_barrier_wait(&all_there);
    pause();
    return argument;
}

__attribute__((noinline)) static void start_thread(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, wait_on_a_deep_stack, NULL);
}

int main(void)
{
    static char *blocks[BLOCKS];
    char *volatile kept[6];
    memset(data, 1, sizeof data);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK);
        memset(blocks[i], 1, BLOCK);
    }
    /* Between blocks that stay: the allocator cannot give it back. */
    for (int i = 0; i < BLOCKS; i += 4)
        free(blocks[i]);
    for (int i = 0; i < 4; i++)
        kept[i] = map_often();
    kept[4] = map_and_grow();
    kept[5] = share();
    pthread_barrier_init(&all_there, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        start_thread();
    pthread_barrier_wait(&all_there);
    usleep(600000);
    return kept[0][0] + kept[5][0] - 2 + data[5] - 1;
}
