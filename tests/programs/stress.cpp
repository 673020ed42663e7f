// Behaviour: 64 threads allocate, spawn, exit, load and unload, fork, take signals and throw, and check their blocks.
// Usage: stress SECONDS PLUGIN
#include "check.h"

#include <atomic>
#include <csignal>
#include <ctime>
#include <dlfcn.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>

namespace {

enum { THREADS = 64, SHARED = 256 };

std::atomic<bool> is_over;
std::atomic<unsigned long> signals_taken, exceptions_caught, forks, loads, threads_started;
const char *plugin;
pthread_t threads[THREADS];
// Threads that may be signalled: once they run, none goes before nobody signals any more.
std::atomic<bool> is_running[THREADS];
pthread_barrier_t nobody_signals;

// Blocks that pass from thread to thread; whoever takes one out frees it.
struct Parcel {
    size_t size;
    unsigned tag;
    unsigned char content[1];
};
std::atomic<Parcel *> shared[SHARED];

// glibc's malloc may not be called here, so that handlers only look.
void on_signal(int) { signals_taken.fetch_add(1, std::memory_order_relaxed); }

void open_parcel(Parcel *parcel) {
    if (!parcel) return;
    CHECK(is_painted(parcel->content, parcel->size, parcel->tag));
    free(parcel);
}

void exchange_parcel(unsigned *seed) {
    size_t size = next_random(seed) % 100 == 0 ? 300000 : 1 + next_random(seed) % 2000;
    Parcel *parcel = static_cast<Parcel *>(malloc(sizeof(Parcel) + size));
    CHECK(parcel != nullptr);
    parcel->size = size;
    parcel->tag = *seed;
    paint(parcel->content, size, parcel->tag);
    open_parcel(shared[next_random(seed) % SHARED].exchange(parcel));
}

void aligned_blocks(unsigned *seed) {
    void *block = nullptr;
    size_t alignment = static_cast<size_t>(16) << next_random(seed) % 9, size = 1 + next_random(seed) % 10000;
    // mimalloc 2.0.9, which Debian 12 has, misaligns small multiples of the alignment (its issue 700).
    size += size % alignment == 0;
    CHECK(posix_memalign(&block, alignment, size) == 0);
    CHECK(reinterpret_cast<size_t>(block) % alignment == 0);
    paint(block, size, 1);
    block = realloc(block, size + 500);
    CHECK(is_painted(block, size, 1));
    free(block);
    unsigned char *zeroed = static_cast<unsigned char *>(calloc(7, 100));
    for (int at = 0; at < 700; at++) CHECK(zeroed[at] == 0);
    memset(zeroed, 9, 700);
    free(zeroed);
}

NOINLINE int fall(int depth) {
    std::string text(static_cast<size_t>(depth) * 10, 'x');
    KEEP(text.data());
    if (depth == 0) throw std::runtime_error("far enough down to need more than a small string");
    return fall(depth - 1) + 1;
}

void throw_and_catch(unsigned *seed) {
    try {
        fall(1 + static_cast<int>(next_random(seed) % 40));
    } catch (const std::exception &error) {
        CHECK(strlen(error.what()) > 40);
        exceptions_caught++;
    }
}

void fork_a_child(unsigned *seed) {
    int status = static_cast<int>(next_random(seed) % 100);
    pid_t child = fork();
    if (child < 0) return;
    if (child == 0) {
        churn(50, 2000, static_cast<unsigned>(status));
        _exit(status);
    }
    int seen = 0;
    pid_t waited;
    do waited = waitpid(child, &seen, 0);
    while (waited < 0 && errno == EINTR);
    CHECK(waited == child && WIFEXITED(seen) && WEXITSTATUS(seen) == status);
    forks++;
}

void load_and_unload() {
    void *library = dlopen(plugin, RTLD_NOW);
    CHECK(library != nullptr);
    void *(*entry)(size_t) = reinterpret_cast<void *(*)(size_t)>(dlsym(library, "plugin_entry"));
    CHECK(entry != nullptr);
    free(entry(1000));
    CHECK(dlclose(library) == 0);
    loads++;
}

void *short_life(void *seed) {
    churn(30, 3000, static_cast<unsigned>(reinterpret_cast<size_t>(seed)));
    threads_started++;
    return nullptr;
}

void start_threads(unsigned *seed) {
    pthread_t started[3];
    for (pthread_t &thread : started) {
        if (pthread_create(&thread, nullptr, short_life, reinterpret_cast<void *>(static_cast<size_t>(*seed))) != 0) thread = 0;
        next_random(seed);
    }
    for (pthread_t thread : started)
        if (thread) CHECK(pthread_join(thread, nullptr) == 0);
}

void *work(void *argument) {
    unsigned me = static_cast<unsigned>(reinterpret_cast<size_t>(argument)), seed = me * 7919 + 1;
    is_running[me] = true;
    while (!is_over.load(std::memory_order_relaxed)) {
        for (int turn = 0; turn < 40; turn++) exchange_parcel(&seed);
        aligned_blocks(&seed);
        switch (next_random(&seed) % 16) {
        case 0: start_threads(&seed); break;
        case 1: load_and_unload(); break;
        case 2:
            if (me % 8 == 0) fork_a_child(&seed);
            break;
        case 3:
        case 4: throw_and_catch(&seed); break;
        case 5: {
            unsigned other = next_random(&seed) % THREADS;
            if (is_running[other]) pthread_kill(threads[other], SIGUSR1);
            break;
        }
        default: churn(30, 5000, seed);
        }
    }
    pthread_barrier_wait(&nobody_signals);
    return nullptr;
}

} // namespace

int main(int count, char **words) {
    CHECK(count == 3);
    plugin = words[2];
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
    CHECK(pthread_barrier_init(&nobody_signals, nullptr, THREADS) == 0);
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], nullptr, work, reinterpret_cast<void *>(at)) == 0);
    timespec rest = {atoi(words[1]), 0};
    while (nanosleep(&rest, &rest) != 0) CHECK(errno == EINTR);
    is_over = true;
    for (pthread_t thread : threads) CHECK(pthread_join(thread, nullptr) == 0);
    for (std::atomic<Parcel *> &parcel : shared) open_parcel(parcel.exchange(nullptr));
    CHECK(signals_taken && exceptions_caught && forks && loads && threads_started);
    puts("every block held what was written into it");
    return 0;
}
