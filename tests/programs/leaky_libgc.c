/* Serves requests with memory of libgc's. Each opens a session, which is kept for ever; what else it allocates is dropped. */
#include <gc.h>
#include <stdio.h>
#include <stdlib.h>

struct session {
    struct session *next;
    char name[240];
};

static struct session *sessions;
static void **table;

__attribute__((noinline)) static void build_table(void)
{
    table = GC_malloc(100000 * sizeof *table);
    for (size_t i = 0; i < 10000; i++)
        table[i] = GC_malloc(100);
}

__attribute__((noinline)) static void open_session(void)
{
    struct session *session = GC_malloc(sizeof *session);
    session->next = sessions;
    sessions = session;
}

__attribute__((noinline)) static size_t serve_request(void)
{
    size_t served = 0;
    for (size_t i = 0; i < 20; i++) {
        char *answer = GC_malloc_atomic(500);
        answer[0] = 'a';
        served += answer[0] == 'a';
    }
    return served;
}

int main(int count, char **arguments)
{
    size_t served = 0;
    GC_INIT();
    build_table();
    for (int i = 0; i < (count > 1 ? atoi(arguments[1]) : 1000); i++) {
        open_session();
        served += serve_request();
    }
    printf("%zu\n", served);
    return 0;
}
