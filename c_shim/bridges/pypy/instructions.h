/* The few instructions of x86-64 that the search knows. Each function may read 24 bytes from `code` on. */
#ifndef ALLOCSAMPLE_BRIDGES_PYPY_INSTRUCTIONS_H
#define ALLOCSAMPLE_BRIDGES_PYPY_INSTRUCTIONS_H

#include "image.h"

/* The address that the 32-bit distance at the end of an instruction leads to. */
static inline uint64_t target(const uint8_t *code, size_t length, uint64_t address)
{
    return address + length + (uint64_t)(int64_t)int_at(code + length - 4);
}

/* REX.W, `operation`, a register and a place at a distance. */
static inline bool is_near(const uint8_t *code, uint8_t operation)
{
    return (code[0] & 0xFB) == 0x48 && code[1] == operation && (code[2] & 0xC7) == 0x05;
}

static inline unsigned register_of(const uint8_t *code)
{
    return (code[0] >> 2 & 1u) << 3 | (code[2] >> 3 & 7u);
}

/* REX.W, `operation` and a place at `distance` from a register; 0 or the length without an immediate value. */
static inline size_t read_field(const uint8_t *code, uint8_t operation, int32_t *distance)
{
    if ((code[0] & 0xF8) != 0x48 || code[1] != operation || (code[2] & 7) == 4)
        return 0;
    switch (code[2] >> 6) {
    case 1:
        *distance = (int8_t)code[3];
        return 4;
    case 2:
        *distance = int_at(code + 3);
        return 7;
    default:
        return 0;
    }
}

/* `lea distance(%from), %to`; 0 or the instruction's length. */
static inline size_t read_lea(const uint8_t *code, unsigned *to, unsigned *from, int32_t *distance)
{
    *to = register_of(code);
    *from = (code[0] & 1u) << 3 | (code[2] & 7u);
    return read_field(code, 0x8D, distance);
}

/* `movq $value, memory`: true with the value. */
static inline bool reads_stored_value(const uint8_t *code, int32_t *value)
{
    if ((code[0] & 0xF8) != 0x48 || code[1] != 0xC7 || (code[2] & 0x38) != 0 || code[2] >> 6 == 3)
        return false;
    size_t length = 3;
    unsigned mode = code[2] >> 6, base = code[2] & 7u;
    if (base == 4) {
        length++;
        base = code[3] & 7u;
    }
    length += mode == 1 ? 1 : mode == 2 || base == 5 ? 4 : 0;
    *value = int_at(code + length);
    return true;
}

#endif
