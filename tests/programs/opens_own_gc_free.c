// Behaviour: opens the libraries in its arguments, each for itself, and has each call its own functions, in turns.
#include "check.h"

#include <dlfcn.h>

int main(int count, char **paths) {
    int (*check[8])(void);
    for (int i = 1; i < count; i++) {
        void *library = dlopen(paths[i], RTLD_LAZY | RTLD_LOCAL);
        CHECK(library != NULL);
        check[i] = (int (*)(void))dlsym(library, "check");
        CHECK(check[i] != NULL);
    }
    for (int turn = 0; turn < 2; turn++)
        for (int i = 1; i < count; i++) CHECK(check[i]() == 0);
    puts("done");
    return 0;
}
