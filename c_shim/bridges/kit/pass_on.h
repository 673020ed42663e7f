/* Entries under plain names, such as `gc_free`, which any library may have for a function of its own.
 *
 * Ours stands before all of them, in every process. Unless the bridge has joined, an entry jumps to the function that the caller
 * meant, with all registers and the stack as they were: it may take any arguments and return anything. */
#ifndef ALLOCSAMPLE_BRIDGES_PASS_ON_H
#define ALLOCSAMPLE_BRIDGES_PASS_ON_H

#include "bridge.h"

/* The function of that name that `caller` meant; NULL: there is none. It is kept in `*found` if it is every caller's. Takes the loader's
 * lock. */
HIDDEN void *pass_on_to(const char *name, const void *caller, void **found);

#if defined(__x86_64__)
#define PASS_ON_CODE(NAME, JOINED)                                                                                     \
    "endbr64\n\t"                                                                                                      \
    "cmpq $0, " #JOINED "(%rip)\n\t"                                                                                   \
    "jne " #NAME "_joined\n\t"                                                                                         \
    "mov " #NAME "_next(%rip), %r11\n\t"                                                                               \
    "test %r11, %r11\n\t"                                                                                              \
    "je 1f\n\t"                                                                                                        \
    "jmp *%r11\n"                                                                                                      \
    "1:\n\t"                                                                                                           \
    "push %rbp\n\t.cfi_def_cfa_offset 16\n\t.cfi_offset %rbp, -16\n\t"                                                 \
    "mov %rsp, %rbp\n\t.cfi_def_cfa_register %rbp\n\t"                                                                 \
    "sub $192, %rsp\n\t"                                                                                               \
    "mov %rdi, (%rsp)\n\tmov %rsi, 8(%rsp)\n\tmov %rdx, 16(%rsp)\n\tmov %rcx, 24(%rsp)\n\t"                            \
    "mov %r8, 32(%rsp)\n\tmov %r9, 40(%rsp)\n\tmov %rax, 48(%rsp)\n\tmov %r10, 56(%rsp)\n\t"                           \
    "movaps %xmm0, 64(%rsp)\n\tmovaps %xmm1, 80(%rsp)\n\tmovaps %xmm2, 96(%rsp)\n\tmovaps %xmm3, 112(%rsp)\n\t"        \
    "movaps %xmm4, 128(%rsp)\n\tmovaps %xmm5, 144(%rsp)\n\tmovaps %xmm6, 160(%rsp)\n\tmovaps %xmm7, 176(%rsp)\n\t"     \
    "lea " #NAME "_name(%rip), %rdi\n\tmov 8(%rbp), %rsi\n\tlea " #NAME "_next(%rip), %rdx\n\t"                        \
    "call pass_on_to\n\t"                                                                                              \
    "mov %rax, %r11\n\t"                                                                                               \
    "mov (%rsp), %rdi\n\tmov 8(%rsp), %rsi\n\tmov 16(%rsp), %rdx\n\tmov 24(%rsp), %rcx\n\t"                            \
    "mov 32(%rsp), %r8\n\tmov 40(%rsp), %r9\n\tmov 48(%rsp), %rax\n\tmov 56(%rsp), %r10\n\t"                           \
    "movaps 64(%rsp), %xmm0\n\tmovaps 80(%rsp), %xmm1\n\tmovaps 96(%rsp), %xmm2\n\tmovaps 112(%rsp), %xmm3\n\t"        \
    "movaps 128(%rsp), %xmm4\n\tmovaps 144(%rsp), %xmm5\n\tmovaps 160(%rsp), %xmm6\n\tmovaps 176(%rsp), %xmm7\n\t"     \
    "leave\n\t.cfi_def_cfa %rsp, 8\n\t.cfi_restore %rbp\n\t"                                                           \
    "test %r11, %r11\n\t"                                                                                              \
    "je 2f\n\t"                                                                                                        \
    "jmp *%r11\n"                                                                                                      \
    "2:\n\t"                                                                                                           \
    "xor %eax, %eax\n\t"                                                                                               \
    "ret\n\t"
#elif defined(__aarch64__)
#define PASS_ON_CODE(NAME, JOINED)                                                                                     \
    "hint #34\n\t" /* bti c */                                                                                         \
    "adrp x16, " #JOINED "\n\tldr x16, [x16, #:lo12:" #JOINED "]\n\t"                                                  \
    "cbz x16, 1f\n\t"                                                                                                  \
    "b " #NAME "_joined\n"                                                                                             \
    "1:\n\t"                                                                                                           \
    "adrp x16, " #NAME "_next\n\tldr x16, [x16, #:lo12:" #NAME "_next]\n\t"                                            \
    "cbz x16, 2f\n\t"                                                                                                  \
    "br x16\n"                                                                                                         \
    "2:\n\t"                                                                                                           \
    "stp x29, x30, [sp, #-224]!\n\t.cfi_def_cfa_offset 224\n\t.cfi_offset 29, -224\n\t.cfi_offset 30, -216\n\t"        \
    "mov x29, sp\n\t"                                                                                                  \
    "stp x0, x1, [sp, #16]\n\tstp x2, x3, [sp, #32]\n\tstp x4, x5, [sp, #48]\n\tstp x6, x7, [sp, #64]\n\t"             \
    "str x8, [sp, #80]\n\t"                                                                                            \
    "stp q0, q1, [sp, #96]\n\tstp q2, q3, [sp, #128]\n\tstp q4, q5, [sp, #160]\n\tstp q6, q7, [sp, #192]\n\t"          \
    "mov x1, x30\n\t"                                                                                                  \
    "adrp x0, " #NAME "_name\n\tadd x0, x0, #:lo12:" #NAME "_name\n\t"                                                 \
    "adrp x2, " #NAME "_next\n\tadd x2, x2, #:lo12:" #NAME "_next\n\t"                                                 \
    "bl pass_on_to\n\t"                                                                                                \
    "mov x16, x0\n\t"                                                                                                  \
    "ldp x0, x1, [sp, #16]\n\tldp x2, x3, [sp, #32]\n\tldp x4, x5, [sp, #48]\n\tldp x6, x7, [sp, #64]\n\t"             \
    "ldr x8, [sp, #80]\n\t"                                                                                            \
    "ldp q0, q1, [sp, #96]\n\tldp q2, q3, [sp, #128]\n\tldp q4, q5, [sp, #160]\n\tldp q6, q7, [sp, #192]\n\t"          \
    "ldp x29, x30, [sp], #224\n\t.cfi_def_cfa_offset 0\n\t.cfi_restore 29\n\t.cfi_restore 30\n\t"                      \
    "cbz x16, 3f\n\t"                                                                                                  \
    "br x16\n"                                                                                                         \
    "3:\n\t"                                                                                                           \
    "mov x0, #0\n\t"                                                                                                   \
    "ret\n\t"
#endif

/* Defines the exported entry NAME. While the word JOINED, a hidden variable, is not 0, it is `TYPE NAME_joined(parameters)`, whose body
 * follows. That calls `NAME_next`, which the bridge has found before it joined. `NAME_entry` is the entry by a name that is nobody
 * else's: after an attach NAME is another object's function, also in our own code. */
#define PASS_ON_UNLESS(JOINED, TYPE, NAME, ...)                                                                        \
    __attribute__((visibility("hidden"))) TYPE (*NAME##_next)(__VA_ARGS__);                                            \
    extern __attribute__((visibility("hidden"))) char NAME##_entry[];                                                  \
    __asm__(".pushsection .rodata\n" #NAME "_name:\n\t.asciz \"" #NAME "\"\n\t.popsection\n\t"                         \
            ".pushsection .text\n\t.globl " #NAME "\n\t.type " #NAME ", %function\n\t.balign 16\n" #NAME ":\n\t"       \
            ".cfi_startproc\n\t" PASS_ON_CODE(NAME, JOINED) ".cfi_endproc\n\t"                                         \
            ".size " #NAME ", .-" #NAME "\n\t"                                                                         \
            ".globl " #NAME "_entry\n\t.hidden " #NAME "_entry\n\t"                                                    \
            ".set " #NAME "_entry, " #NAME "\n\t.popsection");                                                         \
    __attribute__((used, noinline, visibility("hidden"))) TYPE NAME##_joined(__VA_ARGS__)

#endif
