// Behaviour: has a profiler of its own, whose signal handler walks the stack, wherever the signal has come. A stack that does
// not reach `main` is an error; so is it if too few signals came while the agent was at work.
#include "check.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>

enum { MOST = 128, ENOUGH = 100 };
int main(void);
static volatile unsigned inside_agent, cut;

static void look(int signal) {
    (void)signal;
    void *frames[MOST];
    int depth = backtrace(frames, MOST);
    int is_inside = 0, reaches_program = 0;
    for (int i = 0; i < depth; i++) {
        Dl_info info;
        if (dladdr(frames[i], &info) == 0) continue;
        is_inside |= strstr(info.dli_fname, "liballocsample") != NULL;
        // The handler itself is the program's, too: two frames above it, at most.
        reaches_program |= i > 2 && info.dli_saddr == (void *)main;
    }
    if (!is_inside) return;
    inside_agent++;
    cut += !reaches_program;
}

int main(void) {
    void *first[4];
    // Loads what it needs.
    CHECK(backtrace(first, 4) > 0);
    struct sigaction action = {.sa_handler = look, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGPROF, &action, NULL) == 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    CHECK(setitimer(ITIMER_PROF, &every, NULL) == 0);
    int is_preloaded = getenv("LD_PRELOAD") != NULL && strstr(getenv("LD_PRELOAD"), "liballocsample") != NULL;
    for (unsigned round = 0; round < (is_preloaded ? 100000u : 10u) && inside_agent < ENOUGH; round++) churn(100, 3000, round);
    struct itimerval never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_PROF, &never, NULL) == 0);
    CHECK(cut == 0);
    CHECK(!is_preloaded || inside_agent >= ENOUGH);
    return 0;
}
