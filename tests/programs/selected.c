// Behaviour: two threads, worker-1 and other, allocate what they are told line by line, and the main thread a little
// meanwhile, so that it hears what is asked of the agent. It says the numbers of the two first.
// Lines: COUNT SIZE   each thread allocates that many blocks of this size, and frees them; the answer is a line
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t count, size;
static int numbers[2];
static sem_t begin[2], done;

NOINLINE static void *allocate(size_t bytes) {
    void *block = malloc(bytes);
    KEEP(block);
    return block;
}

static void *work(void *argument) {
    size_t own = (size_t)argument;
    CHECK(pthread_setname_np(pthread_self(), own ? "other" : "worker-1") == 0);
    numbers[own] = (int)syscall(SYS_gettid);
    CHECK(sem_post(&done) == 0);
    for (;;) {
        CHECK(sem_wait(&begin[own]) == 0);
        for (size_t at = 0; at < count; at++) free(allocate(size));
        CHECK(sem_post(&done) == 0);
    }
    return NULL;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0);
    CHECK(sem_init(&done, 0, 0) == 0);
    for (size_t own = 0; own < 2; own++) {
        pthread_t thread;
        CHECK(sem_init(&begin[own], 0, 0) == 0);
        CHECK(pthread_create(&thread, NULL, work, (void *)own) == 0);
        CHECK(sem_wait(&done) == 0);
    }
    printf("%d %d\n", numbers[0], numbers[1]);
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        while (poll(&input, 1, 1) == 0)
            // Enough for a look at the agent also while this thread is left out.
            for (int at = 0; at < 20; at++) free(allocate(100000));
        if (scanf("%zu %zu", &count, &size) != 2) return 0;
        for (int own = 0; own < 2; own++) CHECK(sem_post(&begin[own]) == 0);
        for (int own = 0; own < 2; own++) CHECK(sem_wait(&done) == 0);
        puts("done");
    }
}
