/* For bridges that read code of aarch64: which instructions can be moved, and what addresses a function reads first.
 *
 * It touches nothing but its arguments, so that its tests run on any processor. */
#ifndef ALLOCSAMPLE_BRIDGES_AARCH64_H
#define ALLOCSAMPLE_BRIDGES_AARCH64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define AARCH64_BYTES 4 /* of an instruction */

/* nop, bti, and paciasp, which signs the return address: hints to the processor, which change no other register. */
static inline bool aarch64_is_hint(uint32_t code)
{
    return (code & 0xfffff01f) == 0xd503201f;
}

/* Whether the instruction does the same at any address: it does not branch, and does not depend on its own address. */
static inline bool aarch64_may_move(uint32_t code)
{
    bool is_reserved = (code & 0x1e000000) == 0, is_branch = (code & 0x1c000000) == 0x14000000;
    bool is_address = (code & 0x1f000000) == 0x10000000, is_literal = (code & 0x3b000000) == 0x18000000;
    return aarch64_is_hint(code) || (!is_reserved && !is_branch && !is_address && !is_literal);
}

/* What is known about a register's content: nothing, the number itself, or how far it is from the thread pointer or from a pointer
 * that was loaded. */
enum aarch64_known { AARCH64_UNKNOWN, AARCH64_NUMBER, AARCH64_THREAD, AARCH64_LOADED };
struct aarch64_value {
    enum aarch64_known known;
    uint64_t number;
};

struct aarch64_registers {
    struct aarch64_value of[32]; /* the last one is sp or zero, and is never known */
};

/* The place that an instruction loads from, and how many bytes. 0 bytes: it loads nothing, or in a way that is not decoded here. */
struct aarch64_load {
    struct aarch64_value from;
    unsigned bytes, to;
};

static inline struct aarch64_value aarch64_sum(struct aarch64_value a, struct aarch64_value b)
{
    struct aarch64_value sum = {.number = a.number + b.number};
    if (a.known != AARCH64_UNKNOWN && b.known == AARCH64_NUMBER)
        sum.known = a.known;
    else if (a.known == AARCH64_NUMBER)
        sum.known = b.known;
    return sum;
}

static inline struct aarch64_load aarch64_load_of(uint32_t code, const struct aarch64_registers *registers)
{
    struct aarch64_value base = registers->of[code >> 5 & 31];
    struct aarch64_value index = {AARCH64_NUMBER, code >> 10 & 0xfff};
    struct aarch64_load load = {.to = code & 31};
    if ((code & 0xffc00000) == 0xf9400000) { /* ldr x, [x, #8n] */
        load.bytes = 8;
        index.number *= 8;
    } else if ((code & 0xffc00000) == 0xb9400000) { /* ldr w, [x, #4n] */
        load.bytes = 4;
        index.number *= 4;
    } else if ((code & 0xffe0fc00) == 0xf8606800) { /* ldr x, [x, x] */
        load.bytes = 8;
        index = registers->of[code >> 16 & 31];
    } else if ((code & 0xfffffc00) == 0xc8dffc00 || (code & 0xfffffc00) == 0xf8bfc000) { /* ldar, ldapr x, [x] */
        load.bytes = 8;
        index.number = 0;
    }
    load.from = aarch64_sum(base, index);
    return load;
}

/* Applies the instruction at `address` to the registers. Returns its load; the register that it loads is unknown from then on. */
static inline struct aarch64_load aarch64_follow(struct aarch64_registers *registers, uint32_t code, uint64_t address)
{
    struct aarch64_load load = aarch64_load_of(code, registers);
    struct aarch64_value result = {.known = AARCH64_UNKNOWN};
    unsigned to = code & 31, from = code >> 5 & 31;
    bool is_memory = (code & 0x0a000000) == 0x08000000;
    if (aarch64_is_hint(code))
        return load;
    if ((code & 0x9f000000) == 0x90000000) { /* adrp */
        uint64_t pages = (uint64_t)(code >> 5 & 0x7ffff) << 2 | (code >> 29 & 3);
        /* 21 bits with a sign. */
        result = (struct aarch64_value){AARCH64_NUMBER, (address & ~UINT64_C(0xfff)) + ((pages ^ 0x100000) - 0x100000) * 4096};
    } else if ((code & 0xff800000) == 0x91000000) { /* add x, x, #n */
        struct aarch64_value number = {AARCH64_NUMBER, (uint64_t)(code >> 10 & 0xfff) << ((code >> 22 & 1) * 12)};
        result = aarch64_sum(registers->of[from], number);
    } else if ((code & 0xff800000) == 0xd2800000) { /* movz */
        result = (struct aarch64_value){AARCH64_NUMBER, (uint64_t)(code >> 5 & 0xffff) << ((code >> 21 & 3) * 16)};
    } else if ((code & 0xff800000) == 0xf2800000 && registers->of[to].known == AARCH64_NUMBER) { /* movk */
        unsigned shift = (code >> 21 & 3) * 16;
        result.known = AARCH64_NUMBER;
        result.number = (registers->of[to].number & ~(UINT64_C(0xffff) << shift)) | (uint64_t)(code >> 5 & 0xffff) << shift;
    } else if ((code & 0xffe0ffe0) == 0xaa0003e0) { /* mov x, x */
        result = registers->of[code >> 16 & 31];
    } else if ((code & 0xffffffe0) == 0xd53bd040) { /* mrs x, tpidr_el0 */
        result.known = AARCH64_THREAD;
    } else if (is_memory && load.bytes == 0) {
        /* It may write its address register, and loads up to two others. */
        registers->of[from].known = AARCH64_UNKNOWN;
        registers->of[code >> 10 & 31].known = AARCH64_UNKNOWN;
    }
    registers->of[to] = result;
    registers->of[31].known = AARCH64_UNKNOWN;
    return load;
}

/* Whether another instruction than the next one may follow. */
static inline bool aarch64_is_branch(uint32_t code)
{
    return (code & 0x1c000000) == 0x14000000 && (code & 0xffc00000) != 0xd5000000;
}

/* A function's first instructions, one after the other. */
struct aarch64_walk {
    const void *function;
    size_t count;
    struct aarch64_registers registers;
    struct aarch64_load load; /* of the last one */
};

/* Applies the next instruction. Returns false after the first 24 instructions, and at a branch. */
static inline bool aarch64_next(struct aarch64_walk *walk)
{
    enum { REACH = 24 };
    const uint8_t *at = (const uint8_t *)walk->function + walk->count * AARCH64_BYTES;
    uint32_t code;
    if (walk->count++ == REACH)
        return false;
    memcpy(&code, at, sizeof code);
    walk->load = aarch64_follow(&walk->registers, code, (uintptr_t)at);
    return !aarch64_is_branch(code);
}

/* Whether `bytes` from here on are data of a loaded object. */
typedef bool aarch64_is_data(const void *at, size_t bytes);

/* The variable that a function reads its first 32-bit number from; NULL: not found. */
static inline int *aarch64_first_int(const void *function, aarch64_is_data *is_data)
{
    struct aarch64_walk walk = {.function = function};
    while (aarch64_next(&walk)) {
        void *place = (void *)(uintptr_t)walk.load.from.number;
        if (walk.load.bytes == sizeof(int) && walk.load.from.known == AARCH64_NUMBER)
            return is_data(place, sizeof(int)) ? place : NULL;
    }
    return NULL;
}

/* For a function that loads a pointer from `offset` bytes behind the thread pointer, and then a word of what it points to. Returns
 * the offset of that word; 0: not found, or the first word. */
static inline uint64_t aarch64_first_field(const void *function, uint64_t offset, aarch64_is_data *is_data)
{
    struct aarch64_walk walk = {.function = function};
    while (aarch64_next(&walk)) {
        struct aarch64_value from = walk.load.from, *to = &walk.registers.of[walk.load.to];
        const void *place = (const void *)(uintptr_t)from.number;
        if (walk.load.bytes != sizeof from.number)
            continue;
        if (from.known == AARCH64_LOADED)
            return from.number;
        if (from.known == AARCH64_THREAD && from.number == offset) {
            *to = (struct aarch64_value){AARCH64_LOADED, 0};
        } else if (from.known == AARCH64_NUMBER && is_data(place, sizeof to->number)) {
            /* An offset from the thread pointer, which the loader has written there. */
            to->known = AARCH64_NUMBER;
            memcpy(&to->number, place, sizeof to->number);
        }
    }
    return 0;
}

#endif
