// Behaviour: a library allocates in its constructor, and throws and catches C++ exceptions there.
#include "check.h"

#include <stdexcept>
#include <string>

namespace {

NOINLINE int fall(int depth) {
    std::string text(100 + depth, 'x');
    if (depth == 0) throw std::runtime_error("the bottom, which is further down than a small string goes");
    int below = fall(depth - 1);
    KEEP(text.data());
    return below + static_cast<int>(text.size());
}

struct Thrower {
    Thrower() {
        for (int turn = 0; turn < 100; turn++) {
            try {
                fall(turn);
                CHECK(!"came back");
            } catch (const std::runtime_error &error) {
                CHECK(strlen(error.what()) > 50);
            }
        }
    }
} thrower;

} // namespace
