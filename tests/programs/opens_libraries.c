// Behaviour: a thread for each of its arguments opens that library, which is embedded.c with -DLIBRARY, allocates and frees by it, and
// closes it, again and again; now and then a forked child allocates. Prints how many blocks had their content.
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { MOST = 8, TURNS = 24, BLOCKS = 100 };

// As in embedded.c.
struct allocator {
    void (*allocate[4])(size_t size, void **block);
    void *(*resize)(void *block, size_t size, unsigned way);
    size_t (*shrink)(void *block, size_t size);
    void (*release)(void *block, size_t size, unsigned way);
};

static atomic_uint right;

static void use(const struct allocator *allocator) {
    void *blocks[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++) {
        allocator->allocate[i % 4](16 * (i + 1), &blocks[i]);
        CHECK(blocks[i] != NULL);
        paint(blocks[i], 16 * (i + 1), i);
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        right += is_painted(blocks[i], 16 * (i + 1), i);
        allocator->release(blocks[i], 16 * (i + 1), i);
    }
}

static void *opens(void *path) {
    for (unsigned turn = 0; turn < TURNS; turn++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
        const struct allocator *allocator = dlsym(library, "embedded_allocator");
        CHECK(allocator != NULL);
        use(allocator);
        if (turn % 8 == 3) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                use(allocator);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        CHECK(dlclose(library) == 0);
    }
    return NULL;
}

int main(int count, char **paths) {
    pthread_t threads[MOST];
    CHECK(count <= MOST);
    for (int i = 1; i < count; i++) CHECK(pthread_create(&threads[i], NULL, opens, paths[i]) == 0);
    for (int i = 1; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    printf("%u\n", right);
    return 5;
}
