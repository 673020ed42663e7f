// Allocates 1,000 blocks of 3,000 bytes that it keeps and 1,000 of 5,000 that it frees; ends with status 7, or as asked.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 1000

__attribute__((noinline)) char *make(size_t bytes) {
    char *block = malloc(bytes);
    memset(block, 1, bytes);
    return block;
}

__attribute__((noinline)) void keep(char **place) { *place = make(3000); }

__attribute__((noinline)) void churn(void) { free(make(5000)); }

int main(int count, char **arguments) {
    const char *end = count > 1 ? arguments[1] : "";
    char *kept[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        keep(&kept[i]);
        churn();
    }
    int status = kept[1][2] + 6;
    if (!strcmp(end, "abort")) abort();
    if (!strcmp(end, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(end, "tidy"))
        for (int i = 0; i < BLOCKS; i++) free(kept[i]);
    return status;
}
