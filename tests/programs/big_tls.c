// Behaviour: many libraries with big thread-local storage are loaded late, while threads run and allocate.
// Usage: big_tls LIBRARY...
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

enum { MOST = 64, THREADS = 4 };

static int (*use[MOST])(unsigned);
static int loaded, done;

static void *worker(void *argument) {
    unsigned tag = (unsigned)(size_t)argument;
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        int known = __atomic_load_n(&loaded, __ATOMIC_ACQUIRE);
        for (int at = 0; at < known; at++) CHECK(use[at](tag + (unsigned)at));
        churn(50, 3000, tag);
    }
    for (int at = 0; at < loaded; at++) CHECK(use[at](tag));
    return NULL;
}

int main(int count, char **words) {
    CHECK(count > 1 && count - 1 <= MOST);
    pthread_t threads[THREADS];
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, worker, (void *)at) == 0);
    for (int at = 1; at < count; at++) {
        void *library = dlopen(words[at], RTLD_NOW | RTLD_LOCAL);
        if (!library) fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
        use[at - 1] = (int (*)(unsigned))dlsym(library, "use_storage");
        CHECK(use[at - 1] != NULL && use[at - 1](99));
        __atomic_store_n(&loaded, at, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    printf("%d libraries\n", count - 1);
    return 0;
}
