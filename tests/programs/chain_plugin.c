// Behaviour: a plugin allocates and is unloaded long before the program ends; its frames keep their names.
// Usage: chain_plugin PLUGIN OTHER_PLUGIN, the second taking the first one's place in memory
#include "check.h"

#include <dlfcn.h>

NOINLINE static void call_plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    CHECK(library != NULL);
    void *(*entry)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_entry");
    CHECK(entry != NULL);
    for (int turn = 0; turn < 2000; turn++) free(entry(1500));
    CHECK(dlclose(library) == 0);
}

int main(int count, char **words) {
    CHECK(count == 3);
    for (int turn = 0; turn < 3; turn++) {
        call_plugin(words[1]);
        call_plugin(words[2]);
    }
    churn(2000, 2000, 1);
    puts("the plugins are gone");
    return 0;
}
