// Behaviour: allocates by each of C++'s operators, checks the blocks, and keeps those of every fifth turn. With -DWRAPPED they are the
// program's own, which keep a header before each block, and allocate by the functions of a jemalloc with the prefix `app_`.
#include "check.h"

#include <new>

#ifdef WRAPPED
extern "C" void *app_malloc(size_t);
extern "C" void app_free(void *);
enum { HEADER = 16 };
void *operator new(size_t size) {
    char *block = static_cast<char *>(app_malloc(size + HEADER));
    if (!block) throw std::bad_alloc();
    memcpy(block, &size, sizeof size);
    return block + HEADER;
}
void operator delete(void *block) noexcept {
    if (block) app_free(static_cast<char *>(block) - HEADER);
}
void operator delete(void *block, size_t size) noexcept {
    size_t kept;
    memcpy(&kept, static_cast<char *>(block) - HEADER, sizeof kept);
    CHECK(kept == size);
    operator delete(block);
}
void *operator new[](size_t size) { return operator new(size); }
void *operator new(size_t size, const std::nothrow_t &) noexcept { return operator new(size); }
void *operator new[](size_t size, const std::nothrow_t &) noexcept { return operator new(size); }
void operator delete[](void *block) noexcept { operator delete(block); }
void operator delete[](void *block, size_t size) noexcept { operator delete(block, size); }
void operator delete(void *block, const std::nothrow_t &) noexcept { operator delete(block); }
#endif

enum { TURNS = 1000, SIZE = 400 };

NOINLINE static void *plain(unsigned turn) {
    void *block = turn % 2 ? operator new(SIZE) : operator new[](SIZE);
    KEEP(block);
    return block;
}
NOINLINE static void *quiet(unsigned turn) {
    void *block = turn % 2 ? operator new(SIZE, std::nothrow) : operator new[](SIZE, std::nothrow);
    KEEP(block);
    return block;
}
#ifndef WRAPPED
NOINLINE static void *aligned(unsigned turn) {
    auto alignment = std::align_val_t(64);
    void *block = turn % 2 ? operator new(SIZE, alignment) : operator new[](SIZE, alignment);
    KEEP(block);
    return block;
}
#endif

int main() {
    unsigned right = 0;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        void *blocks[] = {plain(turn), quiet(turn)};
        for (void *block : blocks) paint(block, SIZE, turn);
        for (void *block : blocks) {
            right += is_painted(block, SIZE, turn);
            if (turn % 5 == 0) continue;
            switch (turn % 4) {
            case 0: operator delete(block, size_t(SIZE)); break;
            case 1: operator delete(block); break;
            case 2: operator delete[](block); break;
            default: operator delete(block, std::nothrow);
            }
        }
#ifndef WRAPPED
        void *block = aligned(turn);
        auto alignment = std::align_val_t(64);
        if (turn % 5 == 0) continue;
        if (turn % 2)
            operator delete(block, alignment);
        else
            operator delete[](block, size_t(SIZE), alignment);
#endif
    }
    printf("%u\n", right);
    return 3;
}
