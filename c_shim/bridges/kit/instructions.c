/* See instructions.h. */
#include "kit/instructions.h"

#include <string.h>

#if defined(__x86_64__)

/* What follows an opcode. */
enum form {
    NONE = 1,  /* nothing; 0 is an opcode that is not known */
    MODRM,     /* operands */
    MODRM_I8,  /* operands and 1 byte */
    MODRM_I32, /* operands and 4 bytes */
    I8,
    I32,
    I64,  /* 4 bytes, or 8 of a wide instruction */
    TEST, /* operands, and a number for the first two of the eight instructions with this opcode: 1 byte */
    TEST_32,
    CHANGE, /* operands; the other instructions with this opcode call and jump */
    NEAR_JUMP,
    FAR_JUMP,
    NEAR_CONDITION,
    FAR_CONDITION,
    CALL,
    END,
};

#define EIGHT(FIRST, FORM) [FIRST... FIRST + 7] = FORM
/* add, or, adc, sbb, and, sub, xor, cmp */
#define ARITHMETIC(FIRST)                                                                                              \
    [FIRST... FIRST + 3] = MODRM, [FIRST + 4] = I8, [FIRST + 5] = I32

static const uint8_t forms[256] = {
    ARITHMETIC(0x00),
    ARITHMETIC(0x08),
    ARITHMETIC(0x10),
    ARITHMETIC(0x18),
    ARITHMETIC(0x20),
    ARITHMETIC(0x28),
    ARITHMETIC(0x30),
    ARITHMETIC(0x38),
    EIGHT(0x50, NONE), /* push */
    EIGHT(0x58, NONE), /* pop */
    [0x63] = MODRM,    /* movslq */
    [0x68] = I32,      /* push */
    [0x69] = MODRM_I32, [0x6a] = I8, [0x6b] = MODRM_I8, /* imul, push, imul */
    EIGHT(0x70, NEAR_CONDITION), EIGHT(0x78, NEAR_CONDITION),
    [0x80] = MODRM_I8, [0x81] = MODRM_I32, [0x83] = MODRM_I8, /* arithmetic */
    [0x84 ... 0x8b] = MODRM,                                  /* test, xchg, mov */
    [0x8d] = MODRM,                                           /* lea */
    EIGHT(0x90, NONE),                                        /* nop, xchg */
    [0x98] = NONE, [0x99] = NONE,                             /* cltq, cqto */
    [0xa4 ... 0xa7] = NONE, [0xaa ... 0xaf] = NONE,           /* movs, cmps, stos, lods, scas */
    [0xa8] = I8, [0xa9] = I32,                                /* test */
    EIGHT(0xb0, I8), EIGHT(0xb8, I64),                        /* mov */
    [0xc0] = MODRM_I8, [0xc1] = MODRM_I8,                     /* shifts */
    [0xc3] = END,
    [0xc6] = MODRM_I8, [0xc7] = MODRM_I32, /* mov */
    [0xc9] = NONE,                         /* leave */
    [0xcc] = END,
    [0xd0 ... 0xd3] = MODRM, /* shifts */
    [0xe8] = CALL, [0xe9] = FAR_JUMP, [0xeb] = NEAR_JUMP,
    [0xf5] = NONE, [0xf8 ... 0xf9] = NONE, [0xfc ... 0xfd] = NONE, /* cmc, clc, stc, cld, std */
    [0xf6] = TEST, [0xf7] = TEST_32, [0xfe] = MODRM, [0xff] = CHANGE,
};

/* Behind 0x0f. */
static const uint8_t second_forms[256] = {
    [0x0b] = END, [0x31] = NONE,                                          /* ud2, rdtsc */
    [0x0d] = MODRM, [0x18] = MODRM,                                       /* prefetch */
    [0x10 ... 0x17] = MODRM, [0x28 ... 0x29] = MODRM,                     /* moves of vectors */
    [0x1e ... 0x1f] = MODRM,                                              /* endbr64, nop */
    [0x2a] = MODRM, [0x2c ... 0x2f] = MODRM,                              /* conversions, comparisons */
    EIGHT(0x40, MODRM), EIGHT(0x48, MODRM),                               /* cmov */
    [0x51] = MODRM, [0x54 ... 0x5f] = MODRM,                              /* arithmetic of vectors */
    [0x60 ... 0x6f] = MODRM, [0x70] = MODRM_I8, [0x74 ... 0x76] = MODRM,  /* unpck, pack, movd, movdqa, pshuf, pcmpeq */
    [0x7e ... 0x7f] = MODRM,                                              /* movd, movdqa */
    EIGHT(0x80, FAR_CONDITION), EIGHT(0x88, FAR_CONDITION),
    EIGHT(0x90, MODRM), EIGHT(0x98, MODRM),                               /* set */
    [0xa2] = NONE,                                                        /* cpuid */
    [0xa3] = MODRM, [0xab] = MODRM, [0xaf] = MODRM,                       /* bt, bts, imul */
    [0xa4] = MODRM_I8, [0xa5] = MODRM, [0xac] = MODRM_I8, [0xad] = MODRM, /* shld, shrd */
    [0xb0 ... 0xb1] = MODRM, [0xb3] = MODRM, [0xb6 ... 0xb7] = MODRM,     /* cmpxchg, btr, movz */
    [0xba] = MODRM_I8, [0xbb ... 0xbf] = MODRM, [0xc0 ... 0xc1] = MODRM,  /* bt, bsf, bsr, movs, xadd */
    [0xc6] = MODRM_I8, EIGHT(0xc8, NONE),                                 /* shufps, bswap */
    [0xd4] = MODRM, [0xd6 ... 0xd7] = MODRM, [0xdb] = MODRM,              /* paddq, movq, pmovmskb, pand */
    [0xdf] = MODRM, [0xeb] = MODRM, [0xef] = MODRM,                       /* pandn, por, pxor */
    [0xfa ... 0xfb] = MODRM, [0xfe] = MODRM,                              /* psub, paddd */
};

static int32_t number_32(const uint8_t *at)
{
    int32_t number;
    memcpy(&number, at, sizeof number);
    return number;
}

/* Of the operands: with the byte that names them, and SIB and distance. 0: cut off. */
static size_t operands_length(const uint8_t *at, size_t room, bool *is_relative)
{
    if (room == 0)
        return 0;
    unsigned mod = at[0] >> 6, base = at[0] & 7;
    size_t length = 1;
    *is_relative = mod == 0 && base == 5;
    if (mod != 3 && base == 4) {
        if (room < 2)
            return 0;
        length++;
        if (mod == 0 && (at[1] & 7) == 5)
            return length + 4;
    }
    if (mod == 1)
        length++;
    else if (mod == 2 || *is_relative)
        length += 4;
    return length;
}

static struct instruction jump(enum instruction_kind kind, uintptr_t address, size_t length, int64_t distance)
{
    return (struct instruction){.kind = kind, .length = length, .target = address + length + (uint64_t)distance};
}

static bool has_operands(enum form form)
{
    return form == MODRM || form == MODRM_I8 || form == MODRM_I32 || form == TEST || form == TEST_32 || form == CHANGE;
}

/* Of the number at the end. */
static size_t number_length(enum form form, bool is_wide, unsigned which)
{
    switch (form) {
    case MODRM_I8:
    case I8:
        return 1;
    case MODRM_I32:
    case I32:
        return 4;
    case I64:
        return is_wide ? 8 : 4;
    case TEST:
        return which < 2 ? 1 : 0;
    case TEST_32:
        return which < 2 ? 4 : 0;
    default:
        return 0;
    }
}

/* Operand size, lock, repetition, one that means nothing, and the segments of thread-local memory. */
static const uint8_t prefixes[] = {0x66, 0xf0, 0xf2, 0xf3, 0x2e, 0x64, 0x65};

struct instruction instruction_at(const uint8_t *code, size_t room, uintptr_t address)
{
    const struct instruction unknown = {.kind = INSTRUCTION_UNKNOWN};
    size_t at = 0;
    bool is_wide = false, has_66 = false, has_prefix = false;
    for (; at < room && at < 4; at++) {
        uint8_t prefix = code[at];
        if (memchr(prefixes, prefix, sizeof prefixes) == NULL)
            break;
        has_66 |= prefix == 0x66;
        has_prefix = true;
    }
    if (at < room && (code[at] & 0xf0) == 0x40)
        is_wide = (code[at++] & 8) != 0;
    if (at >= room)
        return unknown;
    bool is_second = code[at] == 0x0f;
    if (is_second && ++at >= room)
        return unknown;
    enum form form = is_second ? second_forms[code[at]] : forms[code[at]];
    uint8_t opcode = code[at++];
    size_t left = room - at;
    switch (form) {
    case NEAR_JUMP:
    case NEAR_CONDITION:
        if (has_prefix || left < 1)
            return unknown;
        return jump(form == NEAR_JUMP ? INSTRUCTION_JUMP : INSTRUCTION_CONDITION, address, at + 1, (int8_t)code[at]);
    case FAR_JUMP:
    case FAR_CONDITION:
    case CALL:
        if (has_prefix || left < 4)
            return unknown;
        return jump(form == CALL           ? INSTRUCTION_CALL
                    : form == FAR_JUMP ? INSTRUCTION_JUMP
                                       : INSTRUCTION_CONDITION,
                    address, at + 4, number_32(code + at));
    case END:
        return (struct instruction){.kind = INSTRUCTION_END, .length = at};
    default:
        break;
    }
    bool is_relative = false;
    size_t operands = has_operands(form) ? operands_length(code + at, left, &is_relative) : 0;
    if (form == 0 || (has_operands(form) && operands == 0))
        return unknown;
    unsigned which = operands > 0 ? (code[at] >> 3) & 7 : 0;
    size_t number = number_length(form, is_wide, which);
    if (has_66 && !is_wide && number >= 4)
        number = 2;
    /* Of the rows that several instructions share, those that are not valid, or are another one. */
    if ((opcode == 0x8d && !is_second && code[at] >= 0xc0) || (opcode == 0xfe && !is_second && which > 1) ||
        ((opcode == 0xc6 || opcode == 0xc7) && !is_second && which > 0) || (is_second && opcode == 0xba && which < 4))
        return unknown;
    struct instruction found = {.kind = INSTRUCTION_PLAIN, .length = at + operands + number};
    if (found.length > room)
        return unknown;
    if (form == CHANGE && which > 1) {
        /* A call, a jump, a push. */
        if (which == 2)
            found.kind = INSTRUCTION_CALL;
        else if (which == 4)
            found.kind = INSTRUCTION_END;
        else if (which != 6)
            return unknown;
    }
    if (is_relative && found.kind == INSTRUCTION_PLAIN) {
        found.kind = INSTRUCTION_DATA;
        found.distance_at = at + 1;
    }
    return found;
}

size_t instructions_of_start(const uint8_t *code, size_t room, size_t least, size_t *distance_at)
{
    size_t length = 0;
    *distance_at = 0;
    while (length < least) {
        struct instruction next = instruction_at(code + length, room - length, (uintptr_t)code + length);
        bool has_distance = next.kind == INSTRUCTION_DATA;
        if (next.kind != INSTRUCTION_PLAIN && (!has_distance || *distance_at != 0))
            return 0;
        if (has_distance)
            *distance_at = length + next.distance_at;
        length += next.length;
    }
    return length;
}

static bool put_distance(uint8_t *to, int64_t distance)
{
    int32_t near = (int32_t)distance;
    memcpy(to, &near, sizeof near);
    return near == distance;
}

size_t instruction_move(const struct instruction *instruction, const uint8_t *code, uintptr_t address,
                        uint8_t to[INSTRUCTION_LONGEST], uintptr_t new_address)
{
    size_t length = instruction->length;
    switch (instruction->kind) {
    case INSTRUCTION_PLAIN:
    case INSTRUCTION_DATA:
        if (length > INSTRUCTION_LONGEST)
            return 0;
        memcpy(to, code, length);
        if (instruction->kind == INSTRUCTION_PLAIN)
            return length;
        return put_distance(to + instruction->distance_at, number_32(code + instruction->distance_at) +
                                                               (int64_t)(address - new_address))
                   ? length
                   : 0;
    case INSTRUCTION_CONDITION: {
        /* 0x70 to 0x7f, and 0x0f 0x80 to 0x0f 0x8f, have the same sixteen conditions. */
        uint8_t condition = (code[0] == 0x0f ? code[1] : code[0]) & 0xf;
        to[0] = 0x0f;
        to[1] = 0x80 | condition;
        return put_distance(to + 2, (int64_t)(instruction->target - (new_address + 6))) ? 6 : 0;
    }
    case INSTRUCTION_JUMP:
        to[0] = 0xe9;
        return put_distance(to + 1, (int64_t)(instruction->target - (new_address + 5))) ? 5 : 0;
    default:
        return 0;
    }
}

#else

#include "kit/aarch64_moves.h"

struct instruction instruction_at(const uint8_t *code, size_t room, uintptr_t address)
{
    uint32_t bits;
    if (room < sizeof bits)
        return (struct instruction){.kind = INSTRUCTION_UNKNOWN};
    memcpy(&bits, code, sizeof bits);
    return aarch64_instruction(bits, address);
}

size_t instruction_move(const struct instruction *instruction, const uint8_t *code, uintptr_t address,
                        uint8_t to[INSTRUCTION_LONGEST], uintptr_t new_address)
{
    uint32_t bits;
    memcpy(&bits, code, sizeof bits);
    return aarch64_move(instruction, bits, address, to, new_address);
}

#endif
