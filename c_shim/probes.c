/* The otel_memory probes of the OpenTelemetry eBPF profiler (its design document 00003), which tools outside of the
 * process can listen to: `otel_memory:alloc(pointer, size, weighted_bytes)` for each sample, whose weights add up to the
 * allocated bytes on average, and `otel_memory:free(pointer)` for each sampled block that is freed.
 *
 * A probe is a nop, and a note in the file that says where it is, where its arguments are and which semaphore a listener
 * counts up (SystemTap's format, version 3: .note.stapsdt). While nobody listens it costs a load at each sample. They
 * stand in functions of their own, which are called on the program's stack, so that a listener finds the program's
 * frames right above. */
#include "shim.h"

/* Address that the notes refer to, so that tools can see whether the file was moved. */
#if defined(__has_attribute)
#if __has_attribute(retain)
#define RETAIN __attribute__((retain)) /* a linker that drops sections does not look into notes */
#endif
#endif
#ifndef RETAIN
#define RETAIN
#endif
RETAIN __attribute__((section(".stapsdt.base"), used, visibility("hidden"))) const char shim_probe_base = 0;

__attribute__((section(".probes"), used)) volatile uint16_t shim_probe_alloc_semaphore;
__attribute__((section(".probes"), used)) volatile uint16_t shim_probe_free_semaphore;

#define NOTE(NAME, ARGUMENTS)                                                                                          \
    "990: nop\n\t"                                                                                                     \
    ".pushsection .note.stapsdt,\"\",\"note\"\n\t"                                                                     \
    ".balign 4\n\t"                                                                                                    \
    ".4byte 992f-991f, 994f-993f, 3\n"                                                                                 \
    "991: .asciz \"stapsdt\"\n"                                                                                        \
    "992: .balign 4\n"                                                                                                 \
    "993: .8byte 990b\n\t"                                                                                             \
    ".8byte shim_probe_base\n\t"                                                                                       \
    ".8byte shim_probe_" NAME "_semaphore\n\t"                                                                         \
    ".asciz \"otel_memory\"\n\t"                                                                                       \
    ".asciz \"" NAME "\"\n\t"                                                                                          \
    ".asciz \"" ARGUMENTS "\"\n"                                                                                       \
    "994: .balign 4\n\t"                                                                                               \
    ".popsection"

#if defined(__x86_64__)
#define ARGUMENT_1 "8@%%rdi"
#define ARGUMENTS_3 "8@%%rdi 8@%%rsi 8@%%rdx"
#elif defined(__aarch64__)
#define ARGUMENT_1 "8@x0"
#define ARGUMENTS_3 "8@x0 8@x1 8@x2"
#endif

bool shim_probe_alloc_is_on(void)
{
    return shim_probe_alloc_semaphore != 0;
}

/* Functions whose arguments are still in the registers that the ABI says. */
__attribute__((noinline)) void shim_probe_alloc(uintptr_t pointer, uint64_t size, uint64_t weighted_bytes)
{
    if (shim_probe_alloc_semaphore == 0)
        return;
#if defined(__x86_64__)
    __asm__ volatile(NOTE("alloc", ARGUMENTS_3)::"D"(pointer), "S"(size), "d"(weighted_bytes));
#else
    register uint64_t first __asm__("x0") = pointer, second __asm__("x1") = size, third __asm__("x2") = weighted_bytes;
    __asm__ volatile(NOTE("alloc", ARGUMENTS_3)::"r"(first), "r"(second), "r"(third));
#endif
}

__attribute__((noinline)) void shim_probe_free(uintptr_t pointer)
{
    if (shim_probe_free_semaphore == 0)
        return;
#if defined(__x86_64__)
    __asm__ volatile(NOTE("free", ARGUMENT_1)::"D"(pointer));
#else
    register uint64_t first __asm__("x0") = pointer;
    __asm__ volatile(NOTE("free", ARGUMENT_1)::"r"(first));
#endif
}
