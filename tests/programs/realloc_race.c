// Behaviour: threads realloc and free so that each address is reused at once by another thread; few blocks stay.
// Prints how many blocks and bytes of the site are live at the end.
#include "check.h"

#include <pthread.h>

enum { THREADS = 4, SLOTS = 64, TURNS = 20000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    void *block;
    size_t size;
} slots[SLOTS];

NOINLINE void *resized_in_a_race(void *block, size_t size) {
    void *moved = realloc(block, size);
    KEEP(moved);
    return moved;
}

static void *racer(void *argument) {
    unsigned seed = (unsigned)(size_t)argument;
    for (int turn = 0; turn < TURNS; turn++) {
        unsigned at = next_random(&seed) % SLOTS;
        // Sizes of few classes, so that what one thread gives back the next one gets.
        size_t size = 32u << next_random(&seed) % 6;
        pthread_mutex_lock(&lock);
        void *block = slots[at].block;
        slots[at].block = NULL;
        size_t old = slots[at].size;
        pthread_mutex_unlock(&lock);
        if (block) CHECK(is_painted(block, old, at));
        if (turn % 16 == 0) {
            void *failed = realloc(block, ~(size_t)0 >> 1);
            CHECK(failed == NULL);
            if (block) CHECK(is_painted(block, old, at));
        }
        block = resized_in_a_race(block, size);
        CHECK(block != NULL);
        paint(block, size, at);
        pthread_mutex_lock(&lock);
        void *other = slots[at].block;
        slots[at].block = block;
        slots[at].size = size;
        pthread_mutex_unlock(&lock);
        free(other);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, racer, (void *)(at + 1)) == 0);
    for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    size_t blocks = 0, bytes = 0;
    for (int at = 0; at < SLOTS; at++) {
        if (!slots[at].block) continue;
        blocks++;
        bytes += slots[at].size;
    }
    fprintf(stderr, "%zu %zu\n", blocks, bytes);
    puts("raced");
    return 0;
}
