// Behaviour: four threads allocate, resize and free blocks of up to 3,000 bytes by an allocator that is part of the program, and keep
// some. Prints how many bytes it has requested in all, and how many are live at the end: exact, as it counts them itself.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, TURNS = 60000, KEPT = THREADS * TURNS / 50 + THREADS, BATCH = 16 };

static _Atomic(uint64_t) allocated, freed;
static void *kept[KEPT];
static _Atomic(unsigned) kept_count;

static uint64_t next_random(uint64_t *state, uint64_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (*state >> 16) % below;
}

static void *make(unsigned turn, size_t size)
{
    void *block = NULL;
    switch (turn % 4) {
    case 0:
        block = malloc(size);
        break;
    case 1:
        block = calloc(1, size);
        break;
    case 2:
        block = realloc(NULL, size);
        break;
    default:
        if (posix_memalign(&block, 64, size) != 0)
            abort();
    }
    if (block == NULL)
        abort();
    allocated += size;
    memset(block, (int)turn, size);
    return block;
}

static void *serve(void *thread)
{
    uint64_t state = (uint64_t)(uintptr_t)thread + 1;
    void *blocks[BATCH] = {0};
    size_t sizes[BATCH] = {0};
    for (unsigned turn = 0; turn < TURNS; turn++) {
        unsigned i = (unsigned)next_random(&state, BATCH);
        if (blocks[i] != NULL && turn % 5 == 0) {
            size_t size = 1 + next_random(&state, 3000);
            blocks[i] = realloc(blocks[i], size);
            allocated += size;
            freed += sizes[i];
            sizes[i] = size;
            continue;
        }
        if (turn % 50 == 1) {
            kept[kept_count++] = make(turn / 50, 1 + next_random(&state, 3000));
            continue;
        }
        free(blocks[i]);
        freed += sizes[i];
        sizes[i] = 1 + next_random(&state, 3000);
        blocks[i] = make(turn, sizes[i]);
    }
    for (unsigned i = 0; i < BATCH; i++) {
        free(blocks[i]);
        freed += sizes[i];
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    char line[64];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, serve, (void *)i) != 0)
            return 1;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    /* Without a buffer, which would be a block. */
    snprintf(line, sizeof line, "%llu %llu\n", (unsigned long long)allocated, (unsigned long long)(allocated - freed));
    fputs(line, stderr);
    return 0;
}
