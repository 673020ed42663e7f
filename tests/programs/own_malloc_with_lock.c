// Behaviour: a program that brings its own malloc, which gives memory back in free while it holds a lock.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"

#define ROOM ((size_t)64 << 20)
#define PAGE ((size_t)4096)

static pthread_mutex_t lock = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
static char *arena;
static size_t used;
static size_t frees;

static void enter(void)
{
    // A thread that comes back to the lock that it holds would wait for itself.
    if (pthread_mutex_lock(&lock) != 0)
        abort();
}

static void *take(size_t alignment, size_t size)
{
    enter();
    if (arena == NULL)
        arena = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t start = (used + alignment - 1 + 16) & ~(alignment - 1);
    size_t end = start + size;
    if (arena == MAP_FAILED || end > ROOM)
        abort();
    size_t usable = (used + PAGE - 1) & ~(PAGE - 1), wanted = (end + PAGE - 1) & ~(PAGE - 1);
    if (wanted > usable)
        mprotect(arena + usable, wanted - usable, PROT_READ | PROT_WRITE);
    used = end;
    memcpy(arena + start - sizeof size, &size, sizeof size);
    pthread_mutex_unlock(&lock);
    return arena + start;
}

void *malloc(size_t size) { return take(16, size); }

void *calloc(size_t count, size_t size) { return take(16, count * size); }

void free(void *block)
{
    if (block == NULL)
        return;
    enter();
    frees++;
    // The page behind all blocks, so that nothing is lost.
    char *behind = arena + ((used + PAGE - 1) & ~(PAGE - 1));
    madvise(behind, PAGE, MADV_DONTNEED);
    mprotect(behind, PAGE, PROT_NONE);
    pthread_mutex_unlock(&lock);
}

void *realloc(void *block, size_t size)
{
    size_t before = 0;
    if (block != NULL)
        memcpy(&before, (char *)block - sizeof before, sizeof before);
    char *moved = take(16, size);
    if (block != NULL)
        memcpy(moved, block, before < size ? before : size);
    free(block);
    return moved;
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
    *block = take(alignment < 16 ? 16 : alignment, size);
    return 0;
}

void *aligned_alloc(size_t alignment, size_t size) { return take(alignment < 16 ? 16 : alignment, size); }

int main(void)
{
    for (int turn = 0; turn < 1000; turn++) {
        char *volatile block = malloc(1000);
        memset(block, 1, 1000);
        free(block);
    }
    CHECK(frees >= 1000);
    return 0;
}
