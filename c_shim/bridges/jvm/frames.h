/* Where HotSpot keeps things in the frames of the interpreter, and in those that enter Java code. These places are the same in all
 * JDKs from 11 on (frame_x86.hpp, frame_aarch64.hpp), and in no table of the JVM. */
#ifndef ALLOCSAMPLE_BRIDGES_JVM_FRAMES_H
#define ALLOCSAMPLE_BRIDGES_JVM_FRAMES_H

#include <stdint.h>

#if defined(__x86_64__)
#define JVM_FRAMES_ARE_KNOWN 1
#elif defined(__aarch64__)
#define JVM_FRAMES_ARE_KNOWN 1
#else
#define JVM_FRAMES_ARE_KNOWN 0
#endif

/* In words from the frame pointer. */
enum {
#if defined(__x86_64__)
    INTERPRETED_BYTECODE = -8,
    ENTRY_WRAPPER = -6,
#else
    INTERPRETED_BYTECODE = -9,
    ENTRY_WRAPPER = -8,
#endif
    INTERPRETED_METHOD = -3,
    INTERPRETED_SENDER_SP = -1,
    SAVED_FP = 0,
    RETURN_ADDRESS = 1,
    /* Above the return address, the frame is the caller's. */
    FRAME_END = 2
};

/* A return address without its signature, which -XX:UseBranchProtection=standard adds. Processors that cannot sign ignore the
 * instruction. */
static inline uintptr_t jvm_address(uintptr_t signed_address)
{
#if defined(__aarch64__)
    register uintptr_t address __asm__("x30") = signed_address;
    __asm__("hint #7" : "+r"(address)); /* xpaclri */
    return address;
#else
    return signed_address;
#endif
}

/* The stack pointer of a caller of an interpreted frame. On aarch64 an interpreted caller has room for its whole expression stack
 * there, and the frames that it calls begin within this room, so its own stack pointer may be lower than they are. */
static inline uintptr_t jvm_sender_sp(const uintptr_t *fp)
{
    uintptr_t sp = fp[INTERPRETED_SENDER_SP];
#if defined(__aarch64__)
    if (sp < (uintptr_t)(fp + FRAME_END))
        sp = (uintptr_t)(fp + FRAME_END);
#endif
    return sp;
}

#endif
