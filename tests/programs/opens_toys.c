// Behaviour: opens libraries, which are toy_mimalloc.c with -DLIBRARY, one after the other, has each allocate as many blocks as the
// argument behind it says, and prints how many have their content. `filter 0` among them: from then on a filter of system calls, which
// lets all of them pass.
#include "check.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>

static void install_filter(void) {
    struct sock_filter pass = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &pass};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static unsigned use(const char *path, unsigned count) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    unsigned (*run)(unsigned) = (unsigned (*)(unsigned))dlsym(library, "toy_run");
    CHECK(run != NULL);
    return run(count);
}

int main(int count, char **arguments) {
    unsigned right = 0;
    for (int i = 1; i + 1 < count; i += 2) {
        if (strcmp(arguments[i], "filter") == 0)
            install_filter();
        else
            right += use(arguments[i], (unsigned)atoi(arguments[i + 1]));
    }
    printf("%u\n", right);
    // The report needs a list of the mappings, which nobody reads of a program that ends after some milliseconds.
    usleep(300 * 1000);
    return 7;
}
