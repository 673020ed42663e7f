// Behaviour: loads, calls and unloads libraries in turns, so that each finds the place of another.
// Usage: module_churn LOADS MOST_GROWTH_KB LIBRARY...
#include "check.h"

#include <dlfcn.h>

static long resident_kb(void) {
    // Read without a buffer of libc's: nothing here is to allocate.
    char text[4096];
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    long kb = -1, one;
    while (fgets(text, sizeof text, file)) {
        if (sscanf(text, "RssAnon: %ld kB", &one) == 1) kb = one;
    }
    fclose(file);
    CHECK(kb >= 0);
    return kb;
}

int main(int count, char **words) {
    CHECK(count >= 4);
    int loads = atoi(words[1]);
    long most_kb = atol(words[2]), at_first = 0;
    int libraries = count - 3;
    unsigned seed = 1;
    for (int turn = 0; turn < loads; turn++) {
        void *library = dlopen(words[3 + turn % libraries], RTLD_NOW);
        CHECK(library != NULL);
        void *(*entry)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_entry");
        CHECK(entry != NULL);
        void *block = entry(3000);
        paint(block, 3000, 9);
        // The loader's own blocks come to lie elsewhere.
        void *between = turn % 3 ? malloc(100 + next_random(&seed) % 3000) : NULL;
        CHECK(dlclose(library) == 0);
        CHECK(is_painted(block, 3000, 9));
        free(block);
        free(between);
        // A fifth of it to fill tables and caches.
        if (turn == loads / 5) at_first = resident_kb();
    }
    long growth_kb = resident_kb() - at_first;
    if (growth_kb > most_kb) {
        printf("%ld KiB more after %d loads\n", growth_kb, loads);
        return 1;
    }
    puts("loaded and unloaded");
    return 0;
}
