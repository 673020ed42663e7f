// Behaviour: known numbers of blocks by malloc, new and new with an alignment, small ones first and large ones later; every second
// one is deleted.
#include "check.h"

#include <new>

enum { BLOCKS = 400 };
static size_t size_of(int at) { return at < BLOCKS / 2 ? 128 : 3008; }

#define COUNTS(NAME, ALLOCATE, FREE)                                      \
    NOINLINE static void NAME() {                                         \
        for (int at = 0; at < BLOCKS; at++) {                             \
            size_t size = size_of(at);                                    \
            void *block = ALLOCATE;                                       \
            KEEP(block);                                                  \
            if (at % 2 == 0) FREE;                                        \
        }                                                                 \
    }
COUNTS(by_malloc, malloc(size), free(block))
COUNTS(by_new, ::operator new(size), ::operator delete(block))
COUNTS(by_aligned_new, ::operator new(size, std::align_val_t(64)), ::operator delete(block, std::align_val_t(64)))

int main() {
    by_malloc();
    by_new();
    by_aligned_new();
    return 0;
}
