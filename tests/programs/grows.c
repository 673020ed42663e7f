// Behaviour: requests that are freed at once, and beside them one site that grows, or seems to:
//   grows cache   a full cache that replaces its oldest entry; recording begins when it is full, and ends after half a round
//   grows huge    six blocks of 64 MiB that are kept
//   grows late    256 bytes of one request in 16 are kept in the last fifth of the run
#include "../../c_shim/include/allocsample.h"
#include "check.h"

enum { CACHE = 100000, REQUESTS = 1000000 };

static void *cache[CACHE];

#define MAKER(NAME)                                                                                                    \
    static NOINLINE void *NAME(size_t size) {                                                                          \
        void *block = malloc(size);                                                                                    \
        KEEP(block);                                                                                                   \
        CHECK(block != NULL);                                                                                          \
        return block;                                                                                                  \
    }
MAKER(cache_entry)
MAKER(keep_huge)
MAKER(keep_late)
MAKER(serve_request)

static void replace_entry(long turn) {
    free(cache[turn % CACHE]);
    cache[turn % CACHE] = cache_entry(1000);
}

static void start_recording(void) {
    const allocsample_hooks *agent = allocsample_find();
    if (agent) CHECK(agent->process_control(ALLOCSAMPLE_START, 0) == ALLOCSAMPLE_OK);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const int is_cache = strcmp(argv[1], "cache") == 0, is_huge = strcmp(argv[1], "huge") == 0;
    const int is_late = strcmp(argv[1], "late") == 0;
    CHECK(is_cache || is_huge || is_late);
    if (is_cache) {
        for (long turn = 0; turn < CACHE; turn++) replace_entry(turn);
        start_recording();
    }
    for (long request = 0; request < (is_late ? 4 : 1) * REQUESTS; request++) {
        free(serve_request(500));
        if (is_cache && request % (2 * REQUESTS / CACHE) == 0) replace_entry(request / (2 * REQUESTS / CACHE));
        if (is_huge && request % (REQUESTS / 6) == REQUESTS / 12) keep_huge((size_t)64 << 20);
        if (is_late && request >= REQUESTS / 5 * 16 && request % 16 == 0) keep_late(256);
    }
    return 0;
}
