// Behaviour: after many allocations a single-threaded program is still single-threaded for the kernel, and childless.
#include "check.h"

#include <sched.h>
#include <sys/wait.h>

int main(void) {
    churn(50000, 5000, 1);
    CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
    CHECK(wait(NULL) == -1 && errno == ECHILD);
    if (unshare(CLONE_NEWUSER) != 0) {
        // Where the machine forbids it to everybody there is nothing to compare: but EINVAL means "not alone".
        CHECK(errno == EPERM || errno == ENOSPC || errno == ENOSYS);
        puts("no user namespaces here");
        return 0;
    }
    churn(50000, 5000, 2);
    puts("in a user namespace");
    return 0;
}
