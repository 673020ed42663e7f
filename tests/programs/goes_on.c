// Behaviour: something that usually ends a process does not end it.
// Usage: goes_on missing|search|unknown_format|abort
#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>

enum { TIMES = 1000 };

NOINLINE static void *allocated_before(void) {
    void *block = malloc(100);
    KEEP(block);
    return block;
}

NOINLINE static void *allocated_after(void) {
    void *block = malloc(200);
    KEEP(block);
    return block;
}

static sigjmp_buf out;

static void leave(int number) {
    (void)number;
    siglongjmp(out, 1);
}

static void nothing_to_run(void) {
    char *const arguments[] = {"none", NULL};
    CHECK(execv("/no/such/program", arguments) == -1 && errno == ENOENT);
    CHECK(execv("/", arguments) == -1 && errno == EACCES);
    CHECK(execv("/dev/null", arguments) == -1 && errno == EACCES);
}

// In five directories, one after the other, as libc does it and as a shell does.
static void search(void) {
    char *const arguments[] = {"none", NULL};
    CHECK(setenv("PATH", "/no/such/one:/no/such/two::/tmp:/usr/bin", 1) == 0);
    CHECK(execvp("no-such-program", arguments) == -1 && errno == ENOENT);
    const char *const paths[] = {"/no/such/one/program", "/no/such/two/program", "./program", "/etc/passwd"};
    for (int i = 0; i < 4; i++) CHECK(execv(paths[i], arguments) == -1 && (errno == ENOENT || errno == EACCES));
}

// An executable file that the kernel does not know how to run: nobody can tell beforehand.
static void unknown_format(void) {
    int file = open("unknown", O_CREAT | O_WRONLY, 0700);
    CHECK(file >= 0 && write(file, "\1\2\3\4", 4) == 4 && close(file) == 0);
    char *const arguments[] = {"none", NULL};
    CHECK(execv("./unknown", arguments) == -1 && errno == ENOEXEC);
}

static void abort_and_leave(void) {
    struct sigaction action = {.sa_handler = leave};
    CHECK(sigaction(SIGABRT, &action, NULL) == 0);
    for (volatile int turn = 0; turn < 3; turn++)
        if (sigsetjmp(out, 1) == 0) abort();
    CHECK(sigaction(SIGABRT, NULL, &action) == 0 && action.sa_handler == leave);
}

int main(int count, char **words) {
    CHECK(count == 2);
    for (int i = 0; i < TIMES; i++) free(allocated_before());
    if (!strcmp(words[1], "missing")) nothing_to_run();
    if (!strcmp(words[1], "search")) search();
    if (!strcmp(words[1], "unknown_format")) unknown_format();
    if (!strcmp(words[1], "abort")) abort_and_leave();
    for (int i = 0; i < TIMES; i++) free(allocated_after());
    return 0;
}
