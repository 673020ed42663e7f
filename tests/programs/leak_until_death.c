// Behaviour: a server that leaks a session with each request until it has no memory left, and dies of it.
// Usage: leak_until_death MEGABYTES abort|touch
#include "check.h"

#include <sys/resource.h>

NOINLINE static void *take(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE static int serve_request(unsigned *seed) {
    int served = 0;
    for (int at = 0; at < 20; at++) {
        size_t size = 1 + next_random(seed) % 4000;
        void *block = take(size);
        if (!block) return 0;
        paint(block, size, 1);
        served += is_painted(block, size, 1);
        free(block);
    }
    return served == 20;
}

NOINLINE static int leak_session(void) {
    char *session = take(2000);
    if (!session) return 0;
    memset(session, 1, 2000);
    return 1;
}

int main(int count, char **words) {
    CHECK(count == 3);
    int is_limited = !strcmp(words[2], "abort");
    rlim_t bytes = (rlim_t)atol(words[1]) << 20;
    struct rlimit limits = {bytes, bytes};
    if (is_limited) CHECK(setrlimit(RLIMIT_AS, &limits) == 0);
    unsigned seed = 1;
    while (serve_request(&seed) && leak_session()) {
    }
    if (write(1, "out of memory\n", 14) < 0) return 1;
    abort();
}
