// Behaviour: one thread loads and unloads a plugin that allocates, while seven others allocate and load another.
// Usage: dlopen_storm PLUGIN OTHER_PLUGIN
#include "check.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

enum { THREADS = 7, LOADS = 300 };

static int done;

NOINLINE void *allocated_in_the_storm(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

// Allocates while the C library holds its lock on the list of modules.
static int visit(struct dl_phdr_info *info, size_t size, void *count) {
    (void)info, (void)size;
    free(allocated_in_the_storm(500));
    ++*(int *)count;
    return 0;
}

static void *worker(void *argument) {
    unsigned turn = (unsigned)(size_t)argument;
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        for (int at = 0; at < 50; at++) free(allocated_in_the_storm(1 + (turn * 31 + (unsigned)at) % 5000));
        int modules = 0;
        if (++turn % 16 == 0) CHECK(dl_iterate_phdr(visit, &modules) == 0 && modules > 1);
        if (turn % 64 == 0) (void)!dlopen("/no/such/library.so", RTLD_NOW);
    }
    return NULL;
}

static void *loader(void *path) {
    for (int turn = 0; turn < LOADS; turn++) {
        void *library = dlopen(path, turn % 2 ? RTLD_NOW : RTLD_LAZY);
        CHECK(library != NULL);
        void *(*entry)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_entry");
        CHECK(entry != NULL);
        void *block = entry(3000);
        CHECK(block != NULL);
        CHECK(dlclose(library) == 0);
        free(block);
    }
    return NULL;
}

int main(int count, char **words) {
    CHECK(count == 3);
    pthread_t threads[THREADS], other;
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, worker, (void *)at) == 0);
    CHECK(pthread_create(&other, NULL, loader, words[2]) == 0);
    loader(words[1]);
    CHECK(pthread_join(other, NULL) == 0);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    for (int at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    printf("%d loads and unloads\n", 2 * LOADS);
    return 0;
}
