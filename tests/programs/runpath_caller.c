// Behaviour: a library loads another one by its bare name, which only its own RUNPATH can find.
#include "check.h"

#include <dlfcn.h>

int load_by_name(const char *name) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library) return 0;
    void *(*entry)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_entry");
    CHECK(entry != NULL);
    free(entry(100));
    CHECK(dlclose(library) == 0);
    return 1;
}
