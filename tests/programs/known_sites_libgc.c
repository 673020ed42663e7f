/* Allocates known numbers of bytes from libgc in functions of known names, and prints the truth as JSON. */
#define _GNU_SOURCE
#include <pthread.h>
#define GC_THREADS
#include <gc.h>
#include <stdio.h>
#include <stdlib.h>

/* A site: a call that is none at the end of its function. libgc adds a byte to each block, and rounds up to 16. */
#define SITE(NAME, CALL)                                                                                               \
    __attribute__((noinline)) static void *NAME(void)                                                                  \
    {                                                                                                                  \
        void *block = CALL;                                                                                            \
        __asm__ volatile("" : "+r"(block));                                                                            \
        return block;                                                                                                  \
    }
SITE(small_and_kept, GC_malloc(63))
SITE(small_and_dropped, GC_malloc(111))
SITE(plain_and_dropped, GC_malloc_atomic(31))
SITE(medium_and_kept, GC_malloc(1007))
SITE(large_and_dropped, GC_malloc_atomic(40000))
SITE(fixed_and_freed, GC_malloc_uncollectable(2999))

struct site {
    const char *name;
    void *(*make)(void);
    unsigned count, bytes;
    int is_kept, is_freed;
};

static const struct site sites[] = {
    {"small_and_kept", small_and_kept, 100000, 64, 1, 0},
    {"small_and_dropped", small_and_dropped, 400000, 112, 0, 0},
    {"plain_and_dropped", plain_and_dropped, 500000, 32, 0, 0},
    {"medium_and_kept", medium_and_kept, 5000, 1007, 1, 0},
    {"large_and_dropped", large_and_dropped, 1000, 40000, 0, 0},
    {"fixed_and_freed", fixed_and_freed, 10000, 2999, 0, 1},
};
enum { SITES = sizeof sites / sizeof sites[0] };

static void ***kept; /* a table for each site, in memory that libgc knows */

static void run(const struct site *site, unsigned times, void **table)
{
    for (unsigned i = 0; i < site->count * times; i++) {
        void *block = site->make();
        if (block == NULL)
            abort();
        if (site->is_kept)
            table[i] = block;
        if (site->is_freed)
            GC_free(block);
    }
}

static void *run_all(void *times)
{
    for (unsigned i = 0; i < SITES; i++)
        run(&sites[i], *(unsigned *)times, kept[i]);
    return NULL;
}

/* Not a word of what was allocated stays on the stack. */
__attribute__((noinline)) static void clear_stack(void)
{
    volatile char room[100000];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 0;
}

int main(int count, char **arguments)
{
    unsigned times = count > 1 ? (unsigned)atoi(arguments[1]) : 1;
    int has_thread = count > 2 && arguments[2][0] != 0;
    GC_INIT();
    kept = GC_malloc_uncollectable(SITES * sizeof *kept);
    for (unsigned i = 0; i < SITES; i++)
        kept[i] = sites[i].is_kept ? GC_malloc_uncollectable(sites[i].count * times * sizeof(void *)) : NULL;
    if (has_thread) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_all, &times) != 0)
            return 1;
        pthread_join(thread, NULL);
    } else {
        run_all(&times);
    }
    clear_stack();
    if (count > 3) /* what libgc has counted itself */
        fprintf(stderr, "%zu\n", GC_get_total_bytes());
    GC_gcollect();
    GC_gcollect();
    printf("{");
    for (unsigned i = 0; i < SITES; i++) {
        const struct site *site = &sites[i];
        unsigned long allocations = (unsigned long)site->count * times, live = site->is_kept ? allocations : 0;
        printf("%s\"%s\":{\"bytes\":%lu,\"allocations\":%lu,\"live_bytes\":%lu,\"live_blocks\":%lu}", i > 0 ? "," : "",
               site->name, allocations * site->bytes, allocations, live * site->bytes, live);
    }
    printf("}\n");
    return 0;
}
