// Behaviour: keeps 1,000 blocks of 1,000 bytes, has its recording go on in another file (argv[1] is the command, argv[2] the
// profile), frees half of them and keeps 500 blocks of 2,000 bytes.
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void *before[1000], *since[500];

int main(int count, char **words)
{
    CHECK(count == 3);
    for (int i = 0; i < 1000; i++)
        before[i] = malloc(1000);
    // Without the agent: an environment that is empty.
    char *const arguments[] = {words[1], "ctl", words[2], "rotate", NULL}, *const environment[] = {NULL};
    pid_t pid;
    CHECK(posix_spawn(&pid, words[1], NULL, NULL, arguments, environment) == 0);
    int status = -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        // What is asked of a process is done when it allocates.
        void *block = malloc(64);
        KEEP(block);
        free(block);
        usleep(1000);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < 1000; i += 2)
        free(before[i]);
    for (int i = 0; i < 500; i++)
        since[i] = malloc(2000);
    KEEP(before);
    KEEP(since);
    return 0;
}
