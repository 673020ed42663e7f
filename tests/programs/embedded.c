// Behaviour: allocates by a jemalloc of its own, whose names begin with `app_`, as it is told line by line. With -DLIBRARY it
// is that part alone, to be opened, and keeps a block that it allocates first of all. With -DINLINED it also calls a function that
// its allocator has for itself, as programs do that have the allocator's fast paths inside their own functions. With -DMIMALLOC,
// -DTCMALLOC or -DGOOGLE it allocates by that one (Google's tcmalloc).
// Lines (each is answered by one line):
//   open PATH | close               a library of its kind: its allocator is used from now on
//   allocate FUNCTION COUNT SIZE    first to fourth allocate blocks, which are kept and painted
//   resize SIZE                     all kept blocks, by realloc and rallocx in turn
//   shrink SIZE                     all kept blocks, by xallocx; answers how many changed, and their bytes since
//   free                            all kept blocks are checked and freed, by free, dallocx and sdallocx in turn
//   threads COUNT TIMES             that many threads allocate, check and free blocks, and end
//   begin COUNT                     that many do so until the program ends
//   sleepers COUNT                  that many sleep until the program ends
//   content                         those threads have gone on since
//   fork COUNT SIZE                 a child frees the oldest kept block, allocates by first, and ends
//   allocated                       bytes in use by jemalloc's own count
//   slots                           how many hooks jemalloc has room for
//   end STATUS
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>

// What the program uses, of its own or of a library.
struct allocator {
    void (*allocate[4])(size_t size, void **block);
    void *(*resize)(void *block, size_t size, unsigned way);
    size_t (*shrink)(void *block, size_t size);
    void (*release)(void *block, size_t size, unsigned way);
    size_t (*allocated)(void);
    unsigned (*free_slots)(void);
};

#if (defined(LIBRARY) || defined(OWN)) && !defined(MIMALLOC)
void *app_malloc(size_t);
void *app_calloc(size_t, size_t);
int app_posix_memalign(void **, size_t, size_t);
void *app_mallocx(size_t, int);
void *app_realloc(void *, size_t);
void *app_rallocx(void *, size_t, int);
size_t app_xallocx(void *, size_t, size_t, int);
void app_free(void *);
void app_dallocx(void *, int);
void app_sdallocx(void *, size_t, int);
int app_mallctl(const char *, void *, size_t *, void *, size_t);

#ifdef INLINED
void *app_je_malloc_default(size_t);
#else
#define app_je_malloc_default app_malloc
#endif
NOINLINE static void first(size_t size, void **block) {
    *block = size == SIZE_MAX ? app_je_malloc_default(size) : app_malloc(size);
    KEEP(block);
}
NOINLINE static void second(size_t size, void **block) {
    *block = app_calloc(size / 8, 8);
    KEEP(block);
}
NOINLINE static void third(size_t size, void **block) {
    // As for sdallocx, which is not told of an alignment: the blocks are multiples of 16 anyway.
    CHECK(app_posix_memalign(block, 16, size) == 0);
    KEEP(block);
}
NOINLINE static void fourth(size_t size, void **block) {
    *block = app_mallocx(size, 0);
    KEEP(block);
}
NOINLINE static void *resized(void *block, size_t size, unsigned way) {
    void *result = way % 2 == 0 ? app_realloc(block, size) : app_rallocx(block, size, 0);
    KEEP(result);
    return result;
}
NOINLINE static size_t shrunk(void *block, size_t size) {
    size_t result = app_xallocx(block, size, 0, 0);
    KEEP(result);
    return result;
}
NOINLINE static void released(void *block, size_t size, unsigned way) {
    switch (way % 3) {
    case 0: app_free(block); break;
    case 1: app_dallocx(block, 0); break;
    default: app_sdallocx(block, size, 0);
    }
    KEEP(block);
}
static size_t allocated(void) {
    uint64_t epoch = 1;
    size_t bytes = 0, length = sizeof bytes;
    CHECK(app_mallctl("epoch", NULL, NULL, &epoch, sizeof epoch) == 0);
    CHECK(app_mallctl("stats.allocated", &bytes, &length, NULL, 0) == 0);
    return bytes;
}
// How many hooks jemalloc has room for: 4 if nobody has installed one.
static unsigned free_slots(void) {
    void *hooks[4] = {0}, *installed[8];
    unsigned found = 0;
    size_t length = sizeof(void *);
    while (app_mallctl("experimental.hooks.install", &installed[found], &length, hooks, sizeof hooks) == 0) found++;
    for (unsigned i = 0; i < found; i++)
        CHECK(app_mallctl("experimental.hooks.remove", NULL, NULL, &installed[i], sizeof(void *)) == 0);
    return found;
}
const struct allocator embedded_allocator = {{first, second, third, fourth}, resized, shrunk, released, allocated, free_slots};
#endif

#if defined(MIMALLOC) || defined(TCMALLOC) || defined(GOOGLE)
#ifdef MIMALLOC
void *mi_malloc(size_t);
void *mi_calloc(size_t, size_t);
void *mi_malloc_aligned(size_t, size_t);
void *mi_zalloc_aligned(size_t, size_t);
void *mi_realloc(void *, size_t);
void *mi_realloc_aligned(void *, size_t, size_t);
void mi_free(void *);
void mi_free_size(void *, size_t);
#define MALLOC(SIZE) mi_malloc(SIZE)
#define CALLOC(COUNT, SIZE) mi_calloc(COUNT, SIZE)
#define ALIGNED(SIZE) mi_malloc_aligned(SIZE, 16)
#define OTHER(SIZE) mi_zalloc_aligned(SIZE, 16)
#define REALLOC(BLOCK, SIZE, WAY) (WAY % 2 == 0 ? mi_realloc(BLOCK, SIZE) : mi_realloc_aligned(BLOCK, SIZE, 16))
#define FREE(BLOCK) mi_free(BLOCK)
#define FREE_SIZED(BLOCK, SIZE) mi_free_size(BLOCK, SIZE)
#elif defined(GOOGLE)
void *TCMallocInternalMalloc(size_t);
void *TCMallocInternalCalloc(size_t, size_t);
void *TCMallocInternalNewNothrow(size_t, const void *);
void *_Znwm12__hot_cold_t(size_t, uint8_t);
void *TCMallocInternalRealloc(void *, size_t);
void *TCMallocInternalReallocArray(void *, size_t, size_t);
void TCMallocInternalFree(void *);
void TCMallocInternalDeleteSized(void *, size_t);
#define MALLOC(SIZE) TCMallocInternalMalloc(SIZE)
#define CALLOC(COUNT, SIZE) TCMallocInternalCalloc(COUNT, SIZE)
#define ALIGNED(SIZE) TCMallocInternalNewNothrow(SIZE, NULL)
#define OTHER(SIZE) _Znwm12__hot_cold_t(SIZE, 1)
#define REALLOC(BLOCK, SIZE, WAY)                                                                                      \
    (WAY % 2 == 0 ? TCMallocInternalRealloc(BLOCK, SIZE) : TCMallocInternalReallocArray(BLOCK, 1, SIZE))
#define FREE(BLOCK) TCMallocInternalFree(BLOCK)
#define FREE_SIZED(BLOCK, SIZE) TCMallocInternalDeleteSized(BLOCK, SIZE)
#else
void *tc_malloc(size_t);
void *tc_calloc(size_t, size_t);
void *tc_memalign(size_t, size_t);
void *tc_new(size_t);
void *tc_realloc(void *, size_t);
void tc_free(void *);
void tc_delete_sized(void *, size_t);
#define MALLOC(SIZE) tc_malloc(SIZE)
#define CALLOC(COUNT, SIZE) tc_calloc(COUNT, SIZE)
#define ALIGNED(SIZE) tc_memalign(16, SIZE)
#define OTHER(SIZE) tc_new(SIZE)
#define REALLOC(BLOCK, SIZE, WAY) tc_realloc(BLOCK, SIZE)
#define FREE(BLOCK) tc_free(BLOCK)
#define FREE_SIZED(BLOCK, SIZE) tc_delete_sized(BLOCK, SIZE)
#endif
NOINLINE static void first(size_t size, void **block) {
    *block = MALLOC(size);
    KEEP(block);
}
NOINLINE static void second(size_t size, void **block) {
    *block = CALLOC(size / 8, 8);
    KEEP(block);
}
NOINLINE static void third(size_t size, void **block) {
    *block = ALIGNED(size);
    KEEP(block);
}
NOINLINE static void fourth(size_t size, void **block) {
    *block = OTHER(size);
    KEEP(block);
}
NOINLINE static void *resized(void *block, size_t size, unsigned way) {
    void *result = REALLOC(block, size, way);
    (void)way;
    KEEP(result);
    return result;
}
NOINLINE static void released(void *block, size_t size, unsigned way) {
    if (way % 2 == 0)
        FREE(block);
    else
        FREE_SIZED(block, size);
    KEEP(block);
}
const struct allocator embedded_allocator = {{first, second, third, fourth}, resized, NULL, released, NULL, NULL};
#define OWN
#endif

#ifdef LIBRARY
NOINLINE static void constructed(void) {
    static void *kept;
    first(1600, &kept);
    KEEP(kept);
}
__attribute__((constructor)) static void begin(void) { constructed(); }
#endif

#ifndef LIBRARY
enum { MOST = 200000 };
static struct { void *block; size_t size; } kept[MOST];
static unsigned count;
static const struct allocator *use;
static atomic_uint content;

static void churn_own(unsigned times, unsigned seed) {
    enum { HELD = 32 };
    void *held[HELD] = {0};
    size_t sizes[HELD] = {0};
    for (unsigned turn = 0; turn < times; turn++) {
        unsigned slot = next_random(&seed) % HELD;
        if (held[slot]) {
            CHECK(is_painted(held[slot], sizes[slot], slot));
            use->release(held[slot], sizes[slot], turn);
        }
        sizes[slot] = 16 * (1 + next_random(&seed) % 250);
        use->allocate[turn % 4](sizes[slot], &held[slot]);
        CHECK(held[slot] != NULL);
        paint(held[slot], sizes[slot], slot);
    }
    for (unsigned slot = 0; slot < HELD; slot++)
        if (held[slot]) use->release(held[slot], sizes[slot], slot);
}

static void *churns(void *times) {
    churn_own((unsigned)(size_t)times, (unsigned)(size_t)&times);
    return NULL;
}
static void *churns_for_ever(void *seed) {
    for (unsigned turn = 0;; turn++) {
        churn_own(1000, turn + (unsigned)(size_t)seed);
        content++;
    }
    return NULL;
}

static void *sleeps(void *nothing) {
    for (;;) pause();
    return nothing;
}

NOINLINE static void allocate(unsigned function, unsigned times, size_t size) {
    while (times-- > 0) {
        CHECK(count < MOST && use != NULL);
        use->allocate[function](size, &kept[count].block);
        CHECK(kept[count].block != NULL);
        paint(kept[count].block, size, count);
        kept[count++].size = size;
    }
}

static int of_name(const char *name) {
    const char *names[] = {"first", "second", "third", "fourth"};
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

int main(void) {
    static char line[8192];
    char word[16], argument[4096];
    size_t a = 0, b = 0;
    void *library = NULL;
#ifdef OWN
    use = &embedded_allocator;
#endif
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin) != NULL) {
        argument[0] = 0;
        a = b = 0;
        CHECK(sscanf(line, "%15s %4095s %zu %zu", word, argument, &a, &b) >= 1);
        size_t number = (size_t)atol(argument);
        // malloc's, beside it.
        void *other = malloc(100);
        KEEP(other);
        free(other);
        if (strcmp(word, "open") == 0) {
            library = dlopen(argument, RTLD_NOW | RTLD_LOCAL);
            if (library == NULL) fprintf(stderr, "%s\n", dlerror());
            CHECK(library != NULL);
            use = dlsym(library, "embedded_allocator");
            CHECK(use != NULL);
        } else if (strcmp(word, "close") == 0) {
            use = NULL;
            count = 0;
            CHECK(dlclose(library) == 0);
        } else if (strcmp(word, "allocate") == 0) {
            CHECK(of_name(argument) >= 0);
            allocate((unsigned)of_name(argument), (unsigned)a, b);
        } else if (strcmp(word, "resize") == 0) {
            for (unsigned i = 0; i < count; i++) {
                kept[i].block = use->resize(kept[i].block, number, i);
                CHECK(kept[i].block != NULL);
                kept[i].size = number;
                paint(kept[i].block, number, i);
            }
        } else if (strcmp(word, "shrink") == 0) {
            size_t changed = 0, bytes = 0;
            for (unsigned i = 0; i < count; i++) {
                size_t before = kept[i].size, after = use->shrink(kept[i].block, number);
                changed += after < before;
                bytes += after < before ? after : 0;
                kept[i].size = after < before ? after : before;
                paint(kept[i].block, kept[i].size, i);
            }
            printf("%zu %zu\n", changed, bytes);
            continue;
        } else if (strcmp(word, "free") == 0) {
            for (unsigned i = 0; i < count; i++) {
                if (kept[i].block == NULL) continue;
                CHECK(is_painted(kept[i].block, kept[i].size, i));
                use->release(kept[i].block, kept[i].size, i);
            }
            count = 0;
        } else if (strcmp(word, "threads") == 0) {
            pthread_t threads[16];
            CHECK(number <= 16);
            for (size_t i = 0; i < number; i++) CHECK(pthread_create(&threads[i], NULL, churns, (void *)a) == 0);
            for (size_t i = 0; i < number; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        } else if (strcmp(word, "begin") == 0) {
            for (size_t i = 0; i < number; i++) {
                pthread_t thread;
                CHECK(pthread_create(&thread, NULL, churns_for_ever, (void *)i) == 0);
            }
        } else if (strcmp(word, "sleepers") == 0) {
            for (size_t i = 0; i < number; i++) {
                pthread_t thread;
                CHECK(pthread_create(&thread, NULL, sleeps, NULL) == 0);
            }
        } else if (strcmp(word, "fork") == 0) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                use->release(kept[0].block, kept[0].size, 0);
                allocate(0, (unsigned)number, a);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        } else if (strcmp(word, "content") == 0) {
            unsigned before = content;
            while (content < before + 20) usleep(1000);
        } else if (strcmp(word, "allocated") == 0) {
            printf("%zu\n", use->allocated());
            continue;
        } else if (strcmp(word, "slots") == 0) {
            printf("%u\n", use->free_slots());
            continue;
        } else {
            CHECK(strcmp(word, "end") == 0);
            exit(atoi(argument));
        }
        puts("done");
    }
    return 0;
}
#endif
