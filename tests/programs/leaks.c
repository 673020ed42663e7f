/* A server in miniature: requests that leak, a cache that fills, a table from the start, and what a thread frees at the
 * end. leaks REQUESTS prints nothing; each kind of block is made in a function of its own name. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))
#define CACHE 4096

static void *volatile sink;
static void *cache[CACHE];
static void **table, **until_exit;
static long requests;

/* Not a tail call: the function is to be in the stack. */
static NOINLINE void *make(size_t size)
{
    void *block = malloc(size);
    if (block == NULL)
        abort();
    memset(block, 1, size < 64 ? size : 64);
    sink = block;
    return block;
}

/* The counter keeps compilers from making one function of all. */
#define MAKER(NAME)                                                                                                    \
    static volatile long NAME##_calls;                                                                                 \
    static NOINLINE void *NAME(size_t size)                                                                            \
    {                                                                                                                  \
        void *block = make(size);                                                                                      \
        NAME##_calls++;                                                                                                \
        sink = block;                                                                                                  \
        return block;                                                                                                  \
    }

MAKER(leak_session)
MAKER(fill_cache)
MAKER(build_table)
MAKER(keep_until_exit)
MAKER(serve_request)

static void *free_what_was_kept(void *unused)
{
    (void)unused;
    for (long i = 0; i < requests; i++)
        free(until_exit[i]);
    return NULL;
}

int main(int argc, char **argv)
{
    requests = argc > 1 ? atol(argv[1]) : 1000000;
    until_exit = calloc((size_t)requests, sizeof *until_exit);
    table = calloc(4096, sizeof *table);
    if (until_exit == NULL || table == NULL)
        return 1;
    for (int i = 0; i < 4096; i++)
        table[i] = build_table(8192);
    for (long i = 0; i < requests; i++) {
        void *buffer = serve_request(3000);
        leak_session(64);
        until_exit[i] = keep_until_exit(64);
        long slot = i / (requests / (3 * CACHE) + 1);
        if (slot < CACHE && cache[slot] == NULL)
            cache[slot] = fill_cache(16384);
        free(buffer);
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, free_what_was_kept, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 1;
    return 0;
}
