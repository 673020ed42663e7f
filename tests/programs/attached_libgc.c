// Behaviour: allocates from libgc what it is told line by line, and watches whether anybody can be noticed.
// Lines (each is answered by one line):
//   COUNT          work calls grow that often, which drops its block; answers COUNT
//   keep COUNT     keep_one keeps as many blocks
//   drop           they are no longer referred to, and a collection looks at all
//   threads COUNT  that many threads build and check lists, and share dead ones, for ever
//   well           whether all of them have come round again, and are content
//   callback WHICH from now on the program has the first or second callback for libgc's events, or none
//   which          which one libgc says that it has: first, second, none, or another
//   events         how often each was called for the end of a collection, of which there is one now
//   roots          how many bytes of the agent's own data libgc was not told to leave out when it looks for references
//   slots          whether the program's own slots lead to libgc
//   end STATUS
#define GC_THREADS
#include "check.h"

#include <gc.h>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { BLOCK = 1008, THREADS = 8, MOST = 100000, LENGTH = 200 };

NOINLINE static void *grow(void) {
    void *block = GC_malloc(BLOCK);
    __asm__ volatile("" : "+r"(block));
    return block;
}
NOINLINE static void work(unsigned count) {
    for (unsigned i = 0; i < count; i++)
        CHECK(grow() != NULL);
}

static void **kept;
NOINLINE static void keep_one(unsigned place) {
    void *block = GC_malloc_atomic(BLOCK);
    __asm__ volatile("" : "+r"(block));
    CHECK(block != NULL);
    kept[place] = block;
}
/* Not a word of what was allocated stays on the stack. */
NOINLINE static void clear_stack(void) {
    volatile char room[100000];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 0;
}

/* ---- threads ---- */

struct link {
    struct link *next;
    size_t number, room[3];
};

static _Atomic(unsigned) rounds[THREADS];
static unsigned thread_count;

/* Of all sizes that libgc has: from lists of the thread, one by one, and of pages. */
static void *run(void *argument) {
    unsigned number = (unsigned)(size_t)argument;
    for (unsigned round = 0;; round++) {
        struct link *list = NULL;
        for (size_t i = 0; i < LENGTH; i++) {
            struct link *link = GC_malloc(sizeof *link + (i % 7) * 300);
            CHECK(link != NULL && link->next == NULL && link->number == 0);
            link->next = list;
            link->number = i * 8 + number;
            list = link;
            if (i % 50 == 0)
                GC_free(GC_malloc_uncollectable(3000));
        }
        CHECK(GC_malloc_atomic(round % 10 == 0 ? 40000 : 40) != NULL);
        for (size_t i = LENGTH; i-- > 0; list = list->next)
            CHECK(list->number == i * 8 + number);
        CHECK(list == NULL);
        atomic_fetch_add(&rounds[number], 1);
    }
    return NULL;
}

static bool is_well(void) {
    for (unsigned i = 0; i < thread_count; i++) {
        unsigned before = atomic_load(&rounds[i]);
        while (atomic_load(&rounds[i]) - before < 2)
            sched_yield();
    }
    return true;
}

/* ---- callbacks ---- */

static _Atomic(unsigned) ends[2];
static void first(GC_EventType event) {
    if (event == GC_EVENT_END)
        atomic_fetch_add(&ends[0], 1);
}
static void second(GC_EventType event) {
    if (event == GC_EVENT_END)
        atomic_fetch_add(&ends[1], 1);
}

static const char *which(void) {
    GC_on_collection_event_proc present = GC_get_on_collection_event();
    return present == first ? "first" : present == second ? "second" : present == NULL ? "none" : "another";
}

/* ---- roots ---- */

enum { RANGES = 8 };
static struct { size_t start, end; } excluded[RANGES];
static unsigned excluded_count;

/* Before libgc's own, for those that look it up. */
void GC_exclude_static_roots(void *start, void *end) {
    void *next = dlsym(RTLD_NEXT, "GC_exclude_static_roots");
    void (*exclude)(void *, void *);
    CHECK(next != NULL && excluded_count < RANGES);
    memcpy(&exclude, &next, sizeof next);
    excluded[excluded_count].start = (size_t)start;
    excluded[excluded_count++].end = (size_t)end;
    exclude(start, end);
}

/* Bytes of the agent's data that lie in no excluded range. */
static int add_left_in(struct dl_phdr_info *info, size_t size, void *argument) {
    size_t *left = argument;
    (void)size;
    if (strstr(info->dlpi_name, "/liballocsample.so") == NULL)
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        size_t start = info->dlpi_addr + segment->p_vaddr, end = start + segment->p_memsz;
        if (segment->p_type != PT_LOAD || (segment->p_flags & PF_W) == 0)
            continue;
        bool is_out = false;
        for (unsigned j = 0; j < excluded_count; j++)
            is_out |= excluded[j].start <= start && end <= excluded[j].end;
        *left += is_out ? 0 : end - start;
    }
    return 1;
}

static size_t bytes_left_in(void) {
    size_t left = 0;
    CHECK(dl_iterate_phdr(add_left_in, &left) == 1);
    return left;
}

static const char *slots(void) {
    bool are_libgcs = (void *)GC_free == dlsym(RTLD_DEFAULT, "GC_free") &&
                      (void *)GC_set_on_collection_event == dlsym(RTLD_DEFAULT, "GC_set_on_collection_event");
    return are_libgcs ? "libgc's" : "another's";
}

int main(void) {
    char line[100], word[20];
    unsigned number, status = 0;
    GC_INIT();
    GC_allow_register_threads();
    kept = GC_malloc_uncollectable(MOST * sizeof *kept);
    puts("ready");
    for (fflush(stdout); fgets(line, sizeof line, stdin) != NULL; fflush(stdout)) {
        if (sscanf(line, "end %u", &status) == 1)
            return (int)status;
        if (sscanf(line, "%u", &number) == 1) {
            work(number);
            printf("%u\n", number);
        } else if (sscanf(line, "keep %u", &number) == 1) {
            CHECK(number <= MOST);
            for (unsigned i = 0; i < number; i++)
                keep_one(i);
            puts("kept");
        } else if (strcmp(line, "drop\n") == 0) {
            memset(kept, 0, MOST * sizeof *kept);
            clear_stack();
            GC_gcollect();
            puts("dropped");
        } else if (sscanf(line, "threads %u", &number) == 1) {
            for (CHECK(number <= THREADS); thread_count < number; thread_count++) {
                pthread_t thread;
                CHECK(pthread_create(&thread, NULL, run, (void *)(size_t)thread_count) == 0);
            }
            puts("started");
        } else if (strcmp(line, "well\n") == 0) {
            puts(is_well() ? "well" : "ill");
        } else if (sscanf(line, "callback %19s", word) == 1) {
            GC_set_on_collection_event(strcmp(word, "first") == 0 ? first : strcmp(word, "second") == 0 ? second : NULL);
            puts("set");
        } else if (strcmp(line, "which\n") == 0) {
            puts(which());
        } else if (strcmp(line, "events\n") == 0) {
            GC_gcollect();
            printf("%u %u\n", atomic_load(&ends[0]), atomic_load(&ends[1]));
        } else if (strcmp(line, "roots\n") == 0) {
            printf("%zu\n", bytes_left_in());
        } else if (strcmp(line, "slots\n") == 0) {
            puts(slots());
        } else {
            puts("what?");
        }
    }
    return 1;
}
