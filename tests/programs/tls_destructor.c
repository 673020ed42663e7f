// Behaviour: threads end while the thread_local objects of a library allocate in their destructors.
#include "check.h"

#include <pthread.h>

extern void write_diary(void);

static void *diarist(void *unused) {
    write_diary();
    churn(100, 2000, 4);
    return unused;
}

int main(void) {
    for (int turn = 0; turn < 40; turn++) {
        pthread_t threads[4];
        for (int at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], NULL, diarist, NULL) == 0);
        for (int at = 0; at < 4; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    }
    write_diary();
    puts("160 diaries closed");
    return 0;
}
