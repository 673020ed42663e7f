// Behaviour: eight threads throw C++ exceptions through many frames that allocate, while a library is loaded whose
// constructor throws. Usage: exceptions LIBRARY
#include "check.h"

#include <dlfcn.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Node {
    virtual ~Node() = default;
    virtual int descend(int depth) const = 0;
};

struct Deep final : Node {
    NOINLINE int descend(int depth) const override;
};

NOINLINE std::string allocated_in_a_frame(int depth) { return std::string(64 + static_cast<size_t>(depth), 'y'); }

int Deep::descend(int depth) const {
    std::string text = allocated_in_a_frame(depth);
    auto owned = std::make_unique<char[]>(200);
    KEEP(owned.get());
    if (depth == 0) throw std::runtime_error(text);
    return std::make_unique<Deep>()->descend(depth - 1) + static_cast<int>(text.size());
}

void thrower(int seed) {
    std::unique_ptr<Node> node = std::make_unique<Deep>();
    for (int turn = 0; turn < 300; turn++) {
        int depth = 1 + (turn * 7 + seed) % 150;
        try {
            node->descend(depth);
            CHECK(!"came back");
        } catch (const std::exception &error) {
            // Allocating while the exception is alive.
            std::vector<std::string> copies(10, error.what());
            CHECK(copies.back().size() == 64);
            try {
                throw;
            } catch (const std::runtime_error &again) {
                CHECK(std::string(again.what()) == copies[0]);
            }
        }
    }
}

} // namespace

int main(int count, char **words) {
    CHECK(count == 2);
    std::vector<std::thread> threads;
    for (int seed = 0; seed < 8; seed++) threads.emplace_back(thrower, seed);
    for (int turn = 0; turn < 30; turn++) {
        void *library = dlopen(words[1], RTLD_NOW);
        CHECK(library != nullptr && dlclose(library) == 0);
    }
    for (std::thread &thread : threads) thread.join();
    bool is_refused = false;
    try {
        size_t size = ~static_cast<size_t>(0) / 4;
        __asm__ volatile("" : "+r"(size));
        KEEP(::operator new(size));
    } catch (const std::bad_alloc &) {
        is_refused = true;
    }
    CHECK(is_refused);
    puts("2400 exceptions caught");
    return 0;
}
