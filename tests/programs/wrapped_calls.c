// Behaviour: calls every function that liballocsample.a stands before, but those of malloc, and prints what comes of it.
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

extern char **environ;
extern int capset(void *header, const void *data);
extern int execveat(int directory, const char *path, char *const argv[], char *const envp[], int flags);

static void *ends_at_once(void *value) {
    pthread_exit(value);
}

// In a child: a call that returns prints the error, and the status.
#define IN_CHILD(CALL)                                                                                                 \
    do {                                                                                                               \
        fflush(stdout);                                                                                                \
        pid_t child = fork();                                                                                          \
        CHECK(child >= 0);                                                                                             \
        if (child == 0) {                                                                                              \
            CALL;                                                                                                      \
            _exit(100 + errno);                                                                                        \
        }                                                                                                              \
        int status;                                                                                                    \
        CHECK(waitpid(child, &status, 0) == child);                                                                    \
        printf("%s: status %x\n", #CALL, (unsigned)status);                                                            \
    } while (0)

#define HERE(CALL)                                                                                                     \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long result = (long)(CALL);                                                                                    \
        printf("%s: %ld, errno %d\n", #CALL, result, errno);                                                           \
    } while (0)

int main(void) {
    char *const words[] = {"sh", "-c", "exit 7", NULL};
    IN_CHILD(execve("/bin/sh", words, environ));
    IN_CHILD(execv("/bin/sh", words));
    IN_CHILD(execvp("sh", words));
    IN_CHILD(execvp("/no/such/program", words));
    IN_CHILD(execvpe("sh", words, environ));
    IN_CHILD(execl("/bin/sh", "sh", "-c", "exit 8", (char *)NULL));
    IN_CHILD(execlp("sh", "sh", "-c", "exit 9", (char *)NULL));
    IN_CHILD(execle("/bin/sh", "sh", "-c", "exit 10", (char *)NULL, environ));
    IN_CHILD(fexecve(open("/bin/sh", O_RDONLY), words, environ));
    IN_CHILD(execveat(AT_FDCWD, "/bin/sh", words, environ, 0));
    IN_CHILD(execveat(-1, "sh", words, environ, 0));
    IN_CHILD(_exit(11));
    IN_CHILD(_Exit(12));
    IN_CHILD(quick_exit(13));
    IN_CHILD(abort());
    HERE(unshare(0));
    HERE(setns(-1, 0));
    HERE(chroot("/no/such/directory"));
    HERE(setuid(getuid()));
    HERE(seteuid(geteuid()));
    HERE(setreuid((uid_t)-1, (uid_t)-1));
    HERE(setresuid((uid_t)-1, (uid_t)-1, (uid_t)-1));
    HERE(capset(NULL, NULL));
    HERE(prctl(PR_GET_DUMPABLE));
    HERE(prctl(-1));
    HERE(syscall(SYS_getpid) == getpid());
    HERE(syscall(-1));
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, ends_at_once, words[0]) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == words[0]);
    KEEP(malloc(100));
    return 0;
}
