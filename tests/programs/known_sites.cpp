// Behaviour: a workload of which every byte is known, site by site.
// Usage: known_sites [--threads T] [--kilobytes K] [--kill-after-kilobytes K] [--truth FILE]
// Each site is a function and allocates about K kilobytes, spread over T threads. What has happened so far stands in
// the truth table, which is in FILE if one is given, so that it outlives a SIGKILL; at the end it is printed as JSON.
// With --kill-after-kilobytes the process kills itself when one thread has allocated so much, while the others work.
#include "check.h"

#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <new>
#include <pthread.h>
#include <sys/mman.h>

namespace {

enum Site {
    SMALL,
    MEDIUM,
    ZEROED,
    HUGE_BLOCK,
    ALIGNED,
    GROWING,
    HANDED_OVER,
    OPERATOR_NEW,
    LEAK,
    OF_16,
    OF_24,
    OF_1_KB,
    OF_256_KB,
    SITES
};

const char *const NAMES[SITES] = {
    "site_small",        "site_medium", "site_calloc", "site_huge",  "site_aligned", "site_growing_realloc", "site_freed_elsewhere",
    "site_operator_new", "site_leak",   "site_of_16",  "site_of_24", "site_of_1_kb", "site_of_256_kb"};

enum { MOST_THREADS = 64, NAME_BYTES = 32, SLOTS = 256 };

// One thread's part of the truth about one site; only `bytes_freed` and `frees` may be another thread's to write.
struct Tally {
    volatile unsigned long long bytes, allocations;
    std::atomic<unsigned long long> bytes_freed, frees;
};

// What stands in the file: all little-endian 64-bit words, names padded with NUL.
struct Truth {
    unsigned long long sites, threads;
    char names[SITES][NAME_BYTES];
    Tally tallies[MOST_THREADS][SITES];
};

Truth *truth;
unsigned long long kilobytes = 1024, kill_after_kilobytes = ~0ULL >> 11;
unsigned threads = 1;

void allocated(unsigned thread, Site site, size_t size) {
    Tally &tally = truth->tallies[thread][site];
    tally.bytes = tally.bytes + size;
    tally.allocations = tally.allocations + 1;
}

void released(unsigned thread, Site site, size_t size) {
    Tally &tally = truth->tallies[thread][site];
    tally.bytes_freed.store(tally.bytes_freed.load(std::memory_order_relaxed) + size, std::memory_order_relaxed);
    tally.frees.store(tally.frees.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Leaks are kept reachable, as most real ones are.
struct Leaked {
    Leaked *next;
};

// A queue from one thread to the one that frees.
struct Queue {
    struct Item {
        void *block;
        size_t size;
    } items[SLOTS];
    std::atomic<unsigned> pushed, popped;
    std::atomic<bool> is_closed;
};

Queue queues[MOST_THREADS];
Leaked *leaks[MOST_THREADS];

} // namespace

extern "C" {

NOINLINE void *site_small(void) {
    void *block = malloc(40);
    KEEP(block);
    return block;
}

NOINLINE void *site_medium(size_t size) {
    void *block = malloc(size);
    KEEP(block);
    return block;
}

NOINLINE void *site_calloc(size_t count, size_t size) {
    void *block = calloc(count, size);
    KEEP(block);
    return block;
}

NOINLINE void *site_huge(void) {
    void *block = malloc(3 << 20);
    KEEP(block);
    return block;
}

NOINLINE void *site_aligned(size_t size) {
    void *block = nullptr;
    CHECK(posix_memalign(&block, 4096, size) == 0);
    KEEP(block);
    return block;
}

NOINLINE void *site_growing_realloc(void *block, size_t size) {
    void *moved = realloc(block, size);
    KEEP(moved);
    return moved;
}

NOINLINE void *site_freed_elsewhere(void) {
    void *block = malloc(3000);
    KEEP(block);
    return block;
}

NOINLINE void *site_operator_new(void) {
    void *block = ::operator new(600);
    KEEP(block);
    return block;
}

NOINLINE void *site_leak(void) {
    void *block = malloc(20000);
    KEEP(block);
    return block;
}

NOINLINE void *site_of_16(void) {
    void *block = malloc(16);
    KEEP(block);
    return block;
}

NOINLINE void *site_of_24(void) {
    void *block = malloc(24);
    KEEP(block);
    return block;
}

NOINLINE void *site_of_1_kb(void) {
    void *block = malloc(1024);
    KEEP(block);
    return block;
}

NOINLINE void *site_of_256_kb(void) {
    void *block = malloc(256 << 10);
    KEEP(block);
    return block;
}

} // extern "C"

namespace {

// Allocates at one site and frees at once.
#define PASS(site, size, call)                 \
    do {                                       \
        void *block = (call);                  \
        CHECK(block != nullptr);               \
        allocated(me, site, (size));           \
        memset(block, (int)site, 1);           \
        free(block);                           \
        released(me, site, (size));            \
    } while (0)

void hand_over(unsigned me, void *block, size_t size) {
    Queue &queue = queues[me];
    unsigned at = queue.pushed.load(std::memory_order_relaxed);
    while (at - queue.popped.load(std::memory_order_acquire) == SLOTS) sched_yield();
    queue.items[at % SLOTS] = {block, size};
    queue.pushed.store(at + 1, std::memory_order_release);
}

void *free_what_others_allocated(void *) {
    for (unsigned closed = 0; closed < threads;) {
        closed = 0;
        bool idle = true;
        for (unsigned from = 0; from < threads; from++) {
            Queue &queue = queues[from];
            bool is_closed = queue.is_closed.load(std::memory_order_acquire);
            unsigned at = queue.popped.load(std::memory_order_relaxed);
            if (at == queue.pushed.load(std::memory_order_acquire)) {
                closed += is_closed;
                continue;
            }
            idle = false;
            free(queue.items[at % SLOTS].block);
            released(from, HANDED_OVER, queue.items[at % SLOTS].size);
            queue.popped.store(at + 1, std::memory_order_release);
        }
        if (idle) sched_yield();
    }
    return nullptr;
}

// How often `size` goes into this thread's part of a site's kilobytes; at least once.
unsigned long long times(size_t size) {
    unsigned long long part = kilobytes * 1024 / threads / size;
    return part ? part : 1;
}

bool is_due(unsigned long long turn, unsigned long long turns, unsigned long long of) {
    return turn * of / turns != (turn + 1) * of / turns;
}

// All sites in small steps, interleaved, so that at each moment each has had about the same share.
void work(unsigned me) {
    const unsigned long long turns = times(16);
    unsigned seed = 12345 + me;
    char *grown = nullptr;
    size_t grown_size = 0;
    for (unsigned long long turn = 0; turn < turns; turn++) {
        PASS(OF_16, 16, site_of_16());
        if (turn % 1024 == 0 && me == 0) {
            unsigned long long so_far = 0;
            for (int site = 0; site < SITES; site++) so_far += truth->tallies[0][site].bytes;
            if (so_far / 1024 >= kill_after_kilobytes) kill(getpid(), SIGKILL);
        }
        // Half as many bytes again, in as many blocks: 40 : 60.
        PASS(OF_24, 24, site_of_24());
        if (is_due(turn, turns, times(40))) PASS(SMALL, 40, site_small());
        if (is_due(turn, turns, times(5000))) {
            size_t size = 1000 + next_random(&seed) % 8001;
            PASS(MEDIUM, size, site_medium(size));
        }
        if (is_due(turn, turns, times(1200))) PASS(ZEROED, 1200, site_calloc(30, 40));
        if (is_due(turn, turns, times(3 << 20))) PASS(HUGE_BLOCK, 3 << 20, site_huge());
        if (is_due(turn, turns, times(3000))) PASS(ALIGNED, 3000, site_aligned(3000));
        // 64, 112, 196, ... 95 KB, each growth being a new allocation of the whole.
        if (is_due(turn, turns, times(16700))) {
            size_t size = grown_size == 0 ? 64 : grown_size * 7 / 4;
            grown = static_cast<char *>(site_growing_realloc(grown, size));
            CHECK(grown != nullptr);
            allocated(me, GROWING, size);
            if (grown_size) released(me, GROWING, grown_size);
            grown_size = size;
            if (grown_size > 80000) {
                free(grown);
                released(me, GROWING, grown_size);
                grown = nullptr;
                grown_size = 0;
            }
        }
        if (is_due(turn, turns, times(3000))) {
            void *block = site_freed_elsewhere();
            CHECK(block != nullptr);
            allocated(me, HANDED_OVER, 3000);
            hand_over(me, block, 3000);
        }
        if (is_due(turn, turns, times(600))) {
            void *block = site_operator_new();
            allocated(me, OPERATOR_NEW, 600);
            ::operator delete(block);
            released(me, OPERATOR_NEW, 600);
        }
        if (is_due(turn, turns, times(20000))) {
            Leaked *leaked = static_cast<Leaked *>(site_leak());
            CHECK(leaked != nullptr);
            allocated(me, LEAK, 20000);
            leaked->next = leaks[me];
            leaks[me] = leaked;
        }
        // 256 blocks of 1 KB for each one of 256 KB: 50 : 50.
        if (is_due(turn, turns, times(256 << 10))) {
            for (int small = 0; small < 256; small++) PASS(OF_1_KB, 1024, site_of_1_kb());
            PASS(OF_256_KB, 256 << 10, site_of_256_kb());
        }
    }
    if (grown) {
        free(grown);
        released(me, GROWING, grown_size);
    }
    queues[me].is_closed.store(true, std::memory_order_release);
}

void *worker(void *me) {
    work(static_cast<unsigned>(reinterpret_cast<size_t>(me)));
    return nullptr;
}

void print_truth() {
    printf("{\n");
    for (int site = 0; site < SITES; site++) {
        unsigned long long bytes = 0, allocations = 0, freed = 0, frees = 0;
        for (unsigned thread = 0; thread < threads; thread++) {
            const Tally &tally = truth->tallies[thread][site];
            bytes += tally.bytes;
            allocations += tally.allocations;
            freed += tally.bytes_freed;
            frees += tally.frees;
        }
        printf("  \"%s\": {\"bytes\": %llu, \"allocations\": %llu, \"live_bytes\": %llu, \"live_blocks\": %llu}%s\n", NAMES[site], bytes,
               allocations, bytes - freed, allocations - frees, site + 1 < SITES ? "," : "");
    }
    printf("}\n");
}

} // namespace

int main(int count, char **words) {
    const char *file = nullptr;
    for (int at = 1; at + 1 < count; at += 2) {
        if (strcmp(words[at], "--threads") == 0)
            threads = static_cast<unsigned>(atoi(words[at + 1]));
        else if (strcmp(words[at], "--kilobytes") == 0)
            kilobytes = strtoull(words[at + 1], nullptr, 10);
        else if (strcmp(words[at], "--kill-after-kilobytes") == 0)
            kill_after_kilobytes = strtoull(words[at + 1], nullptr, 10);
        else if (strcmp(words[at], "--truth") == 0)
            file = words[at + 1];
        else
            CHECK(!"a known option");
    }
    CHECK(threads >= 1 && threads < MOST_THREADS);
    int descriptor = file ? open(file, O_RDWR | O_CREAT | O_TRUNC, 0644) : -1;
    CHECK(!file || ftruncate(descriptor, sizeof(Truth)) == 0);
    void *mapped = mmap(nullptr, sizeof(Truth), PROT_READ | PROT_WRITE, MAP_SHARED | (file ? 0 : MAP_ANONYMOUS), descriptor, 0);
    CHECK(mapped != MAP_FAILED);
    truth = static_cast<Truth *>(mapped);
    truth->sites = SITES;
    truth->threads = threads;
    for (int site = 0; site < SITES; site++) strcpy(truth->names[site], NAMES[site]);

    pthread_t freer, workers[MOST_THREADS];
    CHECK(pthread_create(&freer, nullptr, free_what_others_allocated, nullptr) == 0);
    for (unsigned thread = 1; thread < threads; thread++)
        CHECK(pthread_create(&workers[thread], nullptr, worker, reinterpret_cast<void *>(static_cast<size_t>(thread))) == 0);
    work(0);
    for (unsigned thread = 1; thread < threads; thread++) CHECK(pthread_join(workers[thread], nullptr) == 0);
    CHECK(pthread_join(freer, nullptr) == 0);
    print_truth();
    return 0;
}
