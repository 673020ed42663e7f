/* Decodes instructions of aarch64 as far as moving them needs, and moves them.
 *
 * It touches nothing but its arguments, so that its tests run on any processor. */
#ifndef ALLOCSAMPLE_BRIDGES_AARCH64_MOVES_H
#define ALLOCSAMPLE_BRIDGES_AARCH64_MOVES_H

#include "kit/aarch64.h"
#include "kit/instructions.h"

/* A distance in instructions: `bits` bits of the code from `first` on, with a sign. In bytes. */
static inline uint64_t aarch64_distance(uint32_t code, unsigned first, unsigned bits)
{
    uint64_t field = code >> first & ((UINT64_C(1) << bits) - 1), sign = UINT64_C(1) << (bits - 1);
    return ((field ^ sign) - sign) * AARCH64_BYTES;
}

/* The code with another distance there. False: it is too far. */
static inline bool aarch64_put_distance(uint32_t *code, unsigned first, unsigned bits, uint64_t bytes)
{
    uint32_t mask = (uint32_t)(((UINT64_C(1) << bits) - 1) << first);
    *code = (*code & ~mask) | ((uint32_t)(bytes / AARCH64_BYTES << first) & mask);
    return aarch64_distance(*code, first, bits) == bytes;
}

static inline bool aarch64_is_jump(uint32_t code) /* b */
{
    return (code & 0xfc000000) == 0x14000000;
}

static inline bool aarch64_is_call(uint32_t code) /* bl */
{
    return (code & 0xfc000000) == 0x94000000;
}

/* The bits of a conditional branch's distance, which begin at bit 5: of b.cond, cbz and tbz, and their kin. 0: it is none. */
static inline unsigned aarch64_condition_bits(uint32_t code)
{
    bool is_flags = (code & 0xff000000) == 0x54000000, is_zero = (code & 0x7e000000) == 0x34000000;
    return is_flags || is_zero ? 19 : (code & 0x7e000000) == 0x36000000 ? 14 : 0;
}

/* adr and adrp. */
static inline bool aarch64_is_address(uint32_t code)
{
    return (code & 0x1f000000) == 0x10000000;
}

/* ldr of a general register from a distance: 64 or 32 bits. */
static inline bool aarch64_is_literal(uint32_t code)
{
    return (code & 0xbf000000) == 0x18000000;
}

static inline struct instruction aarch64_instruction(uint32_t code, uintptr_t address)
{
    struct instruction found = {.kind = INSTRUCTION_UNKNOWN, .length = AARCH64_BYTES};
    bool is_register_branch = (code & 0xfe000000) == 0xd6000000, is_system = (code & 0xffc00000) == 0xd5000000;
    unsigned bits = aarch64_condition_bits(code);
    if (aarch64_is_jump(code) || aarch64_is_call(code)) {
        found.kind = aarch64_is_jump(code) ? INSTRUCTION_JUMP : INSTRUCTION_CALL;
        found.target = address + aarch64_distance(code, 0, 26);
    } else if (bits != 0) {
        found.kind = INSTRUCTION_CONDITION;
        found.target = address + aarch64_distance(code, 5, bits);
    } else if (is_register_branch) {
        found.kind = (code >> 21 & 7) == 1 ? INSTRUCTION_CALL : INSTRUCTION_END;
    } else if (aarch64_is_address(code) || aarch64_is_literal(code)) {
        found.kind = INSTRUCTION_DATA;
    } else if (is_system || aarch64_may_move(code)) {
        found.kind = INSTRUCTION_PLAIN;
    }
    return found;
}

/* Writes movz and movk, which load the number into the register. Returns how many. */
static inline size_t aarch64_load_number(uint32_t *to, unsigned reg, uint64_t number)
{
    size_t count = 0;
    to[count++] = 0xd2800000 | (uint32_t)(number & 0xffff) << 5 | reg;
    for (unsigned piece = 1; piece < 4; piece++) {
        uint32_t bits = (uint32_t)(number >> 16 * piece & 0xffff);
        if (bits != 0)
            to[count++] = 0xf2800000 | piece << 21 | bits << 5 | reg;
    }
    return count;
}

/* The address that adr or adrp computes, or a literal is loaded from. */
static inline uint64_t aarch64_address_of(uint32_t code, uintptr_t address)
{
    if (aarch64_is_literal(code))
        return address + aarch64_distance(code, 5, 19);
    uint64_t field = (uint64_t)(code >> 5 & 0x7ffff) << 2 | (code >> 29 & 3);
    uint64_t distance = (field ^ 0x100000) - 0x100000;
    return code >> 31 == 0 ? address + distance : (address & ~UINT64_C(0xfff)) + distance * 4096;
}

/* The opposite condition in place of this one; b.al and b.nv, which have none, are not instructions of compilers. */
static inline bool aarch64_turn_round(uint32_t *code)
{
    if ((*code & 0xff000000) == 0x54000000) {
        *code ^= 1;
        return (*code & 0xe) != 0xe;
    }
    *code ^= 1 << 24;
    return true;
}

/* As instruction_move: a copy may be longer, but changes no other register. */
static inline size_t aarch64_move(const struct instruction *instruction, uint32_t code, uintptr_t address,
                                  uint8_t to[INSTRUCTION_LONGEST], uintptr_t new_address)
{
    uint32_t copy[INSTRUCTION_LONGEST / AARCH64_BYTES + 1] = {code};
    size_t count = 1;
    unsigned reg = code & 31;
    switch (instruction->kind) {
    case INSTRUCTION_PLAIN:
    case INSTRUCTION_END:
        break;
    case INSTRUCTION_JUMP:
        if (!aarch64_put_distance(&copy[0], 0, 26, instruction->target - new_address))
            return 0;
        break;
    case INSTRUCTION_CONDITION:
        /* Over a jump that reaches farther. */
        copy[1] = 0x14000000;
        count = 2;
        if (!aarch64_turn_round(&copy[0]) ||
            !aarch64_put_distance(&copy[0], 5, aarch64_condition_bits(code), 2 * AARCH64_BYTES) ||
            !aarch64_put_distance(&copy[1], 0, 26, instruction->target - (new_address + AARCH64_BYTES)))
            return 0;
        break;
    case INSTRUCTION_DATA:
        if (reg == 31)
            return 0;
        count = aarch64_load_number(copy, reg, aarch64_address_of(code, address));
        /* ldr, from what the register has now. */
        if (aarch64_is_literal(code))
            copy[count++] = (code >> 30 != 0 ? 0xf9400000 : 0xb9400000) | reg << 5 | reg;
        break;
    default:
        return 0;
    }
    if (count * AARCH64_BYTES > INSTRUCTION_LONGEST)
        return 0;
    memcpy(to, copy, count * AARCH64_BYTES);
    return count * AARCH64_BYTES;
}

#endif
