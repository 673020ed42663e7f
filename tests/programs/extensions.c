// Behaviour: allocates by jemalloc's mallocx and its kin, as it is told line by line, and answers each line. With -DLIBRARY it is a
// part of that, to be opened.
// Lines:
//   allocate COUNT SIZE   `extended` allocates blocks by mallocx, `plain` as many by malloc
//   grow SIZE             `grown` gives those of mallocx this size, by rallocx
//   free                  all blocks, by free, dallocx and sdallocx in turn, whoever allocated them
//   open PATH             a library of its kind; `late` allocates 100 blocks of 3,000 bytes in it from now on, at each `allocate`
//   end STATUS
#include "check.h"

#include <dlfcn.h>

void *mallocx(size_t, int);
void *rallocx(void *, size_t, int);
void dallocx(void *, int);
void sdallocx(void *, size_t, int);

#ifdef LIBRARY
NOINLINE void late(void) {
    for (unsigned i = 0; i < 100; i++) {
        void *block = mallocx(3000, 0);
        KEEP(block);
    }
}
#else
enum { MOST = 10000 };
static struct { void *block; size_t size; } kept[MOST];
static unsigned count;

NOINLINE static void *extended(size_t size) {
    void *block = mallocx(size, 0);
    KEEP(block);
    return block;
}
NOINLINE static void *plain(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}
NOINLINE static void *grown(void *block, size_t size) {
    void *result = rallocx(block, size, 0);
    KEEP(result);
    return result;
}
static void keep(void *block, size_t size) {
    CHECK(block != NULL && count < MOST);
    paint(block, size, count);
    kept[count].block = block;
    kept[count++].size = size;
}

int main(void) {
    char line[300], path[256];
    void (*late)(void) = NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned blocks;
        size_t size;
        int status;
        if (sscanf(line, "end %d", &status) == 1) return status;
        if (sscanf(line, "allocate %u %zu", &blocks, &size) == 2) {
            for (unsigned i = 0; i < blocks; i++) {
                keep(extended(size), size);
                keep(plain(size), size);
            }
            if (late != NULL) late();
        } else if (sscanf(line, "grow %zu", &size) == 1) {
            for (unsigned i = 0; i < count; i += 2) {
                kept[i].block = grown(kept[i].block, size);
                CHECK(is_painted(kept[i].block, kept[i].size, i));
                paint(kept[i].block, size, i);
                kept[i].size = size;
            }
        } else if (sscanf(line, "open %255s", path) == 1) {
            void *library = dlopen(path, RTLD_LAZY);
            CHECK(library != NULL);
            late = (void (*)(void))dlsym(library, "late");
            CHECK(late != NULL);
        } else {
            for (unsigned i = 0; i < count; i++) {
                CHECK(is_painted(kept[i].block, kept[i].size, i));
                switch (i % 3) {
                case 0: free(kept[i].block); break;
                case 1: dallocx(kept[i].block, 0); break;
                default: sdallocx(kept[i].block, kept[i].size, 0);
                }
            }
            count = 0;
        }
        puts("done");
    }
    return 0;
}
#endif
