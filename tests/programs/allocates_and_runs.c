// Allocates so many bytes in blocks of 1,000 that it keeps, and runs a program. Usage: allocates_and_runs BYTES PROGRAM
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    for (long left = atol(words[1]); left > 0; left -= 1000) {
        char *volatile block = malloc(1000);
        memset(block, 1, 1000);
    }
    pid_t child = fork();
    if (child == 0) {
        execl(words[2], words[2], (char *)NULL);
        _exit(127);
    }
    return waitpid(child, NULL, 0) == child ? 0 : 1;
}
