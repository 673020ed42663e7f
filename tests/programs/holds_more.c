// Behaviour: keeps memory as it is told line by line, and answers each: `blocks MIB` by malloc, `map MIB` by mmap.
#include "check.h"

#include <sys/mman.h>

enum { MIB = 1 << 20, BLOCK = 4096 };

NOINLINE static void keep_blocks(long mib) {
    for (long i = 0; i < mib * (MIB / BLOCK); i++) {
        char *block = malloc(BLOCK);
        CHECK(block != NULL);
        memset(block, 1, BLOCK);
        KEEP(block);
    }
}

NOINLINE static void keep_mapping(long mib) {
    char *at = mmap(NULL, (size_t)mib * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memset(at, 1, (size_t)mib * MIB);
    KEEP(at);
}

int main(void) {
    char line[64], what[32];
    long mib;
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        CHECK(sscanf(line, "%31s %ld", what, &mib) == 2);
        if (strcmp(what, "blocks") == 0)
            keep_blocks(mib);
        else
            keep_mapping(mib);
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
