// Behaviour: a debugger that stops one thread of another process for a while: the one that is not the main thread. To the
// process this is a disk that does not answer.
// Usage: stalled_writer MILLISECONDS PROGRAM ARGUMENT... (MILLISECONDS 0: until the program has ended)
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

static long now_ms(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void pause_ms(long ms) {
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

// A thread of the process other than its first; 0 for none.
static pid_t second_thread(pid_t process) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)process);
    DIR *directory = opendir(path);
    if (!directory) return 0;
    pid_t found = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        pid_t thread = atoi(entry->d_name);
        if (thread > 0 && thread != process) found = thread;
    }
    closedir(directory);
    return found;
}

int main(int count, char **words) {
    CHECK(count > 2);
    long milliseconds = atol(words[1]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        // Only the program itself is under observation.
        char *preload = getenv("STALLED_PRELOAD");
        if (preload) setenv("LD_PRELOAD", preload, 1);
        execv(words[2], words + 2);
        _exit(127);
    }
    pid_t thread = 0;
    int status = 0, is_over = 0;
    while (!thread && !(is_over = waitpid(child, &status, WNOHANG) == child)) thread = second_thread(child);
    if (thread && ptrace(PTRACE_SEIZE, thread, NULL, NULL) == 0) {
        CHECK(ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0);
        CHECK(waitpid(thread, NULL, __WALL) == thread);
        long since = now_ms();
        while (milliseconds == 0 || now_ms() - since < milliseconds) {
            // Its first thread cannot be waited for while this one is stopped: its state tells of its end.
            char path[64], text[256], state = 'R';
            snprintf(path, sizeof path, "/proc/%d/stat", (int)child);
            FILE *file = fopen(path, "r");
            if (!file) break;
            if (fgets(text, sizeof text, file)) state = strrchr(text, ')')[2];
            fclose(file);
            if (state == 'Z') break;
            pause_ms(1);
        }
        // Of a process that has ended it is the tracer who must let its thread go.
        if (ptrace(PTRACE_DETACH, thread, NULL, NULL) != 0) waitpid(thread, NULL, __WALL);
        fprintf(stderr, "stalled\n");
    } else if (!is_over) {
        fprintf(stderr, "not stalled\n");
    }
    if (!is_over) CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}
