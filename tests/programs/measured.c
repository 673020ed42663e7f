// Runs argv[3...] for at most argv[2] seconds of a processor's time, writes its largest resident set in KiB to the file
// argv[1], and ends as it did. (A child of a test would count the test's own memory, from before it called exec.)
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4)
        return 99;
    pid_t child = fork();
    if (child == 0) {
        rlim_t seconds = (rlim_t)atoi(argv[2]);
        struct rlimit limit = {seconds, seconds};
        setrlimit(RLIMIT_CPU, &limit);
        execv(argv[3], argv + 3);
        _exit(98);
    }
    int status = 0;
    struct rusage usage;
    if (wait4(child, &status, 0, &usage) != child)
        return 97;
    FILE *out = fopen(argv[1], "w");
    if (!out)
        return 96;
    fprintf(out, "%ld\n", usage.ru_maxrss);
    fclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 95;
}
