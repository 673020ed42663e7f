// Behaviour: a library opens another one by its bare name, which only its own RUNPATH can find, with RTLD_DEEPBIND.
#include <dlfcn.h>

#ifndef RTLD_DEEPBIND
#define RTLD_DEEPBIND 8
#endif

void *open_deep_by_name(const char *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
    // Not the last call: that would be a jump, and the caller another one.
    __asm__ volatile("" : "+r"(library));
    return library;
}
