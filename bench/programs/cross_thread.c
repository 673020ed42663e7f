/* One thread allocates, another frees, in turns.
 *
 * cross_thread SIZE BLOCKS: 10,000 blocks go over at a time. While one works the other sleeps: threads that run at once
 * would measure the luck of the scheduler with the allocator's locks. */
#include "work.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

enum { BATCH = 10000 };

static char *batch[BATCH];
static sem_t filled, emptied;
static long batch_count;
static double consumer_cpu_s;

static void *consume(void *unused)
{
    double start_s = thread_cpu_s();
    for (long i = 0; i < batch_count; i++) {
        sem_wait(&filled);
        for (int j = 0; j < BATCH; j++)
            free(batch[j]);
        sem_post(&emptied);
    }
    consumer_cpu_s = thread_cpu_s() - start_s;
    return unused;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: cross_thread SIZE BLOCKS\n");
        return 2;
    }
    size_t size = strtoul(argv[1], NULL, 0);
    batch_count = atol(argv[2]) / BATCH;
    sem_init(&filled, 0, 0);
    sem_init(&emptied, 0, 1);
    pthread_t consumer;
    if (pthread_create(&consumer, NULL, consume, NULL) != 0)
        return 1;
    double start_s = thread_cpu_s();
    for (long i = 0; i < batch_count; i++) {
        sem_wait(&emptied);
        for (int j = 0; j < BATCH; j++) {
            batch[j] = malloc(size);
            batch[j][0] = 1;
        }
        sem_post(&filled);
    }
    double cpu_s = thread_cpu_s() - start_s;
    pthread_join(consumer, NULL);
    tell_cpu_s(cpu_s + consumer_cpu_s);
    return 0;
}
