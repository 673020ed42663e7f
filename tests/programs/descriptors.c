// Behaviour: a daemon closes all descriptors, or puts its own in the place of others; its files hold only what it wrote.
// Usage: descriptors close_range|close_all|take_over|numbers FILE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static void write_lines(int descriptor, int from, int to) {
    for (int line = from; line < to; line++) {
        char text[32];
        int length = snprintf(text, sizeof text, "line %d\n", line);
        CHECK(write(descriptor, text, (size_t)length) == length);
        churn(50, 4000, (unsigned)line);
    }
}

static void *other_thread(void *unused) {
    churn(20000, 3000, 2);
    return unused;
}

int main(int count, char **words) {
    CHECK(count == 3);
    churn(20000, 3000, 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
    int most = 1024;
    if (!strcmp(words[1], "close_range")) {
        CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
    } else if (!strcmp(words[1], "close_all")) {
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        if (limit.rlim_cur < 1 << 20) most = (int)limit.rlim_cur;
        for (int descriptor = 3; descriptor < most; descriptor++) close(descriptor);
    }
    int first = open(words[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    printf("the first file is descriptor %d\n", first);
    CHECK(first >= 3);
    if (!strcmp(words[1], "take_over")) {
        // Whatever stands at these numbers is ours now, as dup2 promises.
        for (int descriptor = first + 1; descriptor < most; descriptor++) CHECK(dup2(first, descriptor) == descriptor);
    } else {
        for (int more = 1; more <= 5; more++) {
            int next = open("/dev/null", O_RDONLY);
            printf("and then %d\n", next);
        }
    }
    write_lines(first, 0, 100);
    if (!strcmp(words[1], "take_over")) write_lines(most - 1, 100, 200);
    CHECK(pthread_join(thread, NULL) == 0);
    churn(20000, 3000, 3);
    struct stat facts;
    CHECK(fstat(first, &facts) == 0);
    printf("%lld bytes\n", (long long)facts.st_size);
    fflush(stdout);
    write_lines(first, 200, 210);
    return 0;
}
