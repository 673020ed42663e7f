// Behaviour: a program replaces operator new and delete by its own, which count; nobody may bypass them.
#include "check.h"

#include <new>
#include <string>
#include <vector>

static size_t news, deletes;

void *operator new(size_t size) {
    news++;
    size_t *block = static_cast<size_t *>(malloc(size + 16));
    if (!block) throw std::bad_alloc();
    block[0] = 0x600df00d;
    return block + 2;
}

void operator delete(void *block) noexcept {
    if (!block) return;
    deletes++;
    size_t *start = static_cast<size_t *>(block) - 2;
    CHECK(start[0] == 0x600df00d);
    free(start);
}

void operator delete(void *block, size_t) noexcept { operator delete(block); }

int main() {
    {
        std::vector<std::string> words;
        for (int at = 0; at < 1000; at++) words.emplace_back(50, 'w');
    }
    printf("%zu news, %zu deletes\n", news, deletes);
    CHECK(news == deletes && news > 1000);
    return 0;
}
