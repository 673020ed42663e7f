// Behaviour: has functions with mimalloc's names, allocates 20 MiB by them, and prints how many blocks have their content. -DBY_MALLOC:
// they take their blocks from malloc; -DSHORT: one is too short for a jump, or, on aarch64, begins with an instruction that the agent
// does not know; -DLOOP: one jumps back into the instructions that a jump replaces (on aarch64 there is only one of these);
// -DTWICE: one reaches another one by a pointer; -DNEAR: one jumps to another one that is near; -DOTHER: the program also calls one
// that is not known;
// -DLIKE: a number in an instruction looks like a jump into one. -DLIBRARY: it is a library, whose function `toy_run` allocates that many
// blocks and returns how many have their content.
#include "check.h"

#include <stdint.h>
#include <sys/mman.h>

enum { HEADER = 64, COUNT = 5000, SIZE = 4096 };

#ifndef BY_MALLOC
static uintptr_t next, limit;
#endif

// Blocks begin behind a header with their size. A free one is not used again.
NOINLINE void *_mi_take(size_t size) {
#ifdef BY_MALLOC
    char *block = malloc(size + HEADER);
#else
    size_t needed = (size + 2 * HEADER - 1) & -(size_t)HEADER;
    if (next + needed > limit) {
        size_t bytes = needed > (64 << 20) ? needed : (64 << 20);
        next = (uintptr_t)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        limit = next + bytes;
    }
    char *block = (char *)next;
    next += needed;
#endif
    memcpy(block, &size, sizeof size);
    return block + HEADER;
}

#ifdef LOOP
// One byte, then an instruction to which a loop leads back.
void *mi_malloc(size_t size);
__asm__(".text\n\t.globl mi_malloc\n\t.type mi_malloc, @function\nmi_malloc:\n\tpush %rbx\n1:\tmov %rdi, %rbx\n\ttest %rdi, %rdi\n\t"
        "jne 2f\n\tinc %rdi\n\tjmp 1b\n2:\tcall _mi_take\n\tpop %rbx\n\tret\n\t.size mi_malloc, .-mi_malloc\n");
#else
NOINLINE void *mi_malloc(size_t size) { return _mi_take(size); }
#endif
#ifdef TWICE
void *(*volatile other)(size_t) = mi_malloc;
NOINLINE void *mi_zalloc(size_t size) {
    if (size == 1) size = 2;
    return other(size);
}
#elif defined(NEAR)
void *mi_zalloc(size_t size);
#ifdef __aarch64__
__asm__(".text\n\t.globl mi_zalloc\n\t.type mi_zalloc, @function\nmi_zalloc:\n\tmov x1, x0\n\tcbnz x1, 1f\n\t"
        "b mi_malloc\n\t.size mi_zalloc, .-mi_zalloc\n\t"
        ".globl mi_zalloc_aligned\n\t.type mi_zalloc_aligned, @function\nmi_zalloc_aligned:\n1:\tcmp x0, #0\n\t"
        "b mi_malloc\n\t.size mi_zalloc_aligned, .-mi_zalloc_aligned\n");
#else
__asm__(".text\n\t.globl mi_zalloc\n\t.type mi_zalloc, @function\nmi_zalloc:\n\tmov %rdi, %rax\n\tmov %rax, %rdi\n\t"
        "jmp 1f\n\t.size mi_zalloc, .-mi_zalloc\n\t"
        ".globl mi_zalloc_aligned\n\t.type mi_zalloc_aligned, @function\nmi_zalloc_aligned:\n1:\tsub $8, %rsp\n\ttest %rdi, %rdi\n\t"
        "call mi_malloc\n\tadd $8, %rsp\n\tret\n\t.size mi_zalloc_aligned, .-mi_zalloc_aligned\n");
#endif
#else
NOINLINE void *mi_zalloc(size_t size) { return mi_malloc(size + (size == 0)); }
#endif
NOINLINE void *mi_malloc_aligned(size_t size, size_t alignment) {
    CHECK(alignment <= HEADER);
    return mi_malloc(size);
}
#ifdef LIKE
// mov $..e8, %eax: from its second byte on, with the first byte of the next instruction, it looks like a call.
unsigned looks_like_a_call(void);
__asm__(".text\n\t.globl looks_like_a_call\n\t.type looks_like_a_call, @function\nlooks_like_a_call:\n\t.byte 0xb8, 0xe8\n\t"
        ".long mi_malloc + 2 - (. + 4)\n\t.byte 0xc0\n\tret\n\t.size looks_like_a_call, .-looks_like_a_call\n");
#endif
NOINLINE void *_mi_heap_malloc(size_t size) { return _mi_take(size + 1); }
#ifdef SHORT
void mi_free(void *block);
#ifdef __aarch64__
__asm__(".text\n\t.globl mi_free\n\t.type mi_free, @function\nmi_free:\n\tldr q16, 1f\n\tret\n\t.size mi_free, .-mi_free\n\t"
        ".balign 16\n1:\t.quad 1, 2\n");
#else
__asm__(".text\n\t.globl mi_free\n\t.type mi_free, @function\nmi_free:\n\ttest %rdi, %rdi\n\tret\n\t.size mi_free, .-mi_free\n");
#endif
#else
static volatile size_t freed;
NOINLINE void mi_free(void *block) {
    size_t size = 0;
    if (block != NULL) memcpy(&size, (char *)block - HEADER, sizeof size);
    freed += size;
}
#endif
NOINLINE void *mi_realloc(void *block, size_t size) {
    void *moved = mi_malloc(size);
    size_t old = 0;
    if (block != NULL) memcpy(&old, (char *)block - HEADER, sizeof old);
    memcpy(moved, block, old < size ? old : size);
    mi_free(block);
    return moved;
}

unsigned toy_run(unsigned count) {
    static void *blocks[COUNT];
    unsigned right = 0;
    CHECK(count <= COUNT);
#ifdef LIKE
    KEEP((void *)(uintptr_t)looks_like_a_call());
#endif
    for (unsigned i = 0; i < count; i++) {
        blocks[i] = i % 3 == 0 ? mi_malloc(SIZE) : i % 3 == 1 ? mi_zalloc(SIZE) : mi_malloc_aligned(SIZE, 32);
#ifdef OTHER
        if (i % 8 == 0) blocks[i] = _mi_heap_malloc(SIZE);
#endif
        paint(blocks[i], SIZE, i);
        if (i % 5 == 0) blocks[i] = mi_realloc(blocks[i], SIZE);
    }
    for (unsigned i = 0; i < count; i++) right += is_painted(blocks[i], SIZE, i);
    return right;
}

#ifndef LIBRARY
int main(void) {
    printf("%u\n", toy_run(COUNT));
    return 7;
}
#endif
