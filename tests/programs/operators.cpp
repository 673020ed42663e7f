// Behaviour: every form of operator new and delete, replaced handlers and over-aligned types work.
#include "check.h"

#include <cstdint>
#include <new>
#include <vector>

struct alignas(256) Wide {
    char bytes[300];
};

namespace {

int handler_calls;

void give_up() {
    if (++handler_calls == 3) throw std::bad_alloc();
}

NOINLINE size_t opaque(size_t size) {
    __asm__ volatile("" : "+r"(size));
    return size;
}

} // namespace

int main() {
    for (size_t size = 0; size < 5000; size = size * 2 + 1) {
        void *blocks[] = {
            ::operator new(size),
            ::operator new[](size),
            ::operator new(size, std::nothrow),
            ::operator new[](size, std::nothrow),
            ::operator new(size, std::align_val_t(128)),
            ::operator new[](size, std::align_val_t(4096)),
            ::operator new(size, std::align_val_t(64), std::nothrow),
            ::operator new[](size, std::align_val_t(64), std::nothrow),
        };
        for (unsigned at = 0; at < 8; at++) paint(blocks[at], size, at);
        for (unsigned at = 0; at < 8; at++) CHECK(is_painted(blocks[at], size, at));
        CHECK(reinterpret_cast<uintptr_t>(blocks[4]) % 128 == 0 && reinterpret_cast<uintptr_t>(blocks[5]) % 4096 == 0);
        ::operator delete(blocks[0]);
        ::operator delete[](blocks[1], size);
        ::operator delete(blocks[2], std::nothrow);
        ::operator delete[](blocks[3], std::nothrow);
        ::operator delete(blocks[4], std::align_val_t(128));
        ::operator delete[](blocks[5], size, std::align_val_t(4096));
        ::operator delete(blocks[6], std::align_val_t(64), std::nothrow);
        ::operator delete[](blocks[7], std::align_val_t(64), std::nothrow);
    }
    std::vector<Wide> wide(100);
    CHECK(reinterpret_cast<uintptr_t>(&wide[7]) % 256 == 0);
    CHECK(::operator new(opaque(SIZE_MAX / 4), std::nothrow) == nullptr);
    std::set_new_handler(give_up);
    bool is_refused = false;
    try {
        KEEP(::operator new(opaque(SIZE_MAX / 4)));
    } catch (const std::bad_alloc &) {
        is_refused = true;
    }
    CHECK(is_refused && handler_calls == 3);
    puts("every operator works");
    return 0;
}
