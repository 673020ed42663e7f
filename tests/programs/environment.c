// Behaviour: prints its environment as it is; or first starts itself again in some way, to show a child's.
// Usage: environment print | inherit | changed | own | spawn | system
#include "check.h"

#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static void print(void) {
    for (char **entry = environ; *entry; entry++) puts(*entry);
}

static int status_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(int count, char **words) {
    CHECK(count == 2);
    churn(5000, 3000, 1);
    char *const again[] = {words[0], "print", NULL};
    if (!strcmp(words[1], "print")) {
        print();
        return 0;
    }
    if (!strcmp(words[1], "inherit")) execv(words[0], again);
    if (!strcmp(words[1], "changed")) {
        CHECK(setenv("ADDED", "one", 1) == 0 && unsetenv("LD_PRELOAD") == 0);
        execv(words[0], again);
    }
    if (!strcmp(words[1], "own")) {
        char *const own[] = {"FIRST=1", "LD_LIBRARY_PATH=/nowhere", "EMPTY=", NULL};
        execve(words[0], again, own);
    }
    if (!strcmp(words[1], "spawn")) {
        char *const own[] = {"SPAWNED=1", "LD_PRELOAD=", NULL};
        pid_t child;
        CHECK(posix_spawn(&child, words[0], NULL, NULL, again, own) == 0 && status_of(child) == 0);
        CHECK(posix_spawn(&child, words[0], NULL, NULL, again, environ) == 0);
        return status_of(child);
    }
    if (!strcmp(words[1], "system")) return system("env");
    CHECK(!"a known way");
}
