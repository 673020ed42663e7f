// Behaviour: writes over code that keeps its place in the stack: the same return address, another way to leave the frame.
// x86-64, with frame pointers. `before` and `after` allocate, each called by `calls` through the code as it was then.
#include "check.h"

#include <stdint.h>
#include <sys/mman.h>

NOINLINE void before(void) {
    void *block = malloc(100);
    KEEP(block);
    free(block);
    __asm__ volatile("");
}
NOINLINE void after(void) {
    void *block = malloc(100);
    KEEP(block);
    free(block);
    __asm__ volatile("");
}

typedef void (*thunk)(void (*)(void));

// Has a frame pointer, which the code passes on.
NOINLINE void calls(thunk code, void (*callee)(void)) {
    code(callee);
    __asm__ volatile("");
}

int main(void) {
    // sub $8, %rsp; call *%rdi; then add $8, %rsp; ret: either at once, or behind a nop.
    static const unsigned char start[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7}, end[] = {0x48, 0x83, 0xc4, 0x08, 0xc3};
    unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    thunk code = (thunk)(uintptr_t)memory;
    void (*const callees[])(void) = {before, after};
    for (unsigned turn = 0; turn < 40; turn++) {
        unsigned is_after = turn % 2;
        memcpy(memory, start, sizeof start);
        memory[sizeof start] = 0x90;
        memcpy(memory + sizeof start + !is_after, end, sizeof end);
        calls(code, callees[is_after]);
    }
    return 0;
}
