/* One thread allocates, another frees.
 *
 * cross_thread SIZE BLOCKS: blocks go over in batches, and whoever is ahead sleeps. */
#include "work.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

enum { BATCH = 256, BATCHES = 8 };

static void *batches[BATCHES][BATCH];
static sem_t full, empty;
static long batch_count;
static double consumer_cpu_s;

static void *consume(void *unused)
{
    double start_s = thread_cpu_s();
    for (long i = 0; i < batch_count; i++) {
        sem_wait(&full);
        for (int j = 0; j < BATCH; j++)
            free(batches[i % BATCHES][j]);
        sem_post(&empty);
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
    sem_init(&full, 0, 0);
    sem_init(&empty, 0, BATCHES);
    pthread_t consumer;
    if (pthread_create(&consumer, NULL, consume, NULL) != 0)
        return 1;
    double start_s = thread_cpu_s();
    for (long i = 0; i < batch_count; i++) {
        sem_wait(&empty);
        for (int j = 0; j < BATCH; j++) {
            char *block = malloc(size);
            block[0] = 1;
            batches[i % BATCHES][j] = block;
        }
        sem_post(&full);
    }
    double cpu_s = thread_cpu_s() - start_s;
    pthread_join(consumer, NULL);
    tell_cpu_s(cpu_s + consumer_cpu_s);
    return 0;
}
