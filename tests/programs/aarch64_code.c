/* Checks the decoders of aarch64 on code of compilers: aarch64_code. Ends with the number of the first wrong answer. */
#include "kit/aarch64_moves.h"

#include <stdio.h>

static int checks;

#define CHECK(CONDITION)                                                                                               \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(CONDITION)) {                                                                                            \
            fprintf(stderr, "check %d, line %d: " #CONDITION "\n", checks, __LINE__);                                  \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

static bool is_data(const void *at, size_t bytes)
{
    return at != NULL && bytes > 0;
}

static bool is_no_data(const void *at, size_t bytes)
{
    (void)at;
    (void)bytes;
    return false;
}

/* adrp of the page of `to`, for code at `at`. */
static uint32_t page_of(const void *to, const void *at, unsigned into)
{
    int64_t pages = (int64_t)((uintptr_t)to >> 12) - (int64_t)((uintptr_t)at >> 12);
    return 0x90000000 | (uint32_t)(pages & 3) << 29 | (uint32_t)(pages >> 2 & 0x7ffff) << 5 | into;
}

static uint32_t low_of(const void *to)
{
    return (uint32_t)((uintptr_t)to & 0xfff);
}

static int check_moves(void)
{
    static const uint32_t may[] = {
        0xd503233f, /* paciasp */
        0xd503245f, /* bti c */
        0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
        0xd10483ff, /* sub sp, sp, #0x120 */
        0xaa0003f0, /* mov x16, x0 */
        0xf9401790, /* ldr x16, [x28, #40] */
        0x3dc3905f, /* ldr q31, [x2, #3648] */
        0xb9485a60, /* ldr w0, [x19, #2136] */
        0x1e6021f8, /* fcmpe d15, #0.0 */
        0xd2800028, /* mov x8, #1 */
    };
    static const uint32_t may_not[] = {
        0x00000000, /* udf */
        0x14000001, /* b */
        0x97ffaabc, /* bl */
        0x5400008a, /* b.ge */
        0xb40000a0, /* cbz x0 */
        0x35000e27, /* cbnz w7 */
        0xb7f80061, /* tbnz x1, #63 */
        0x90000983, /* adrp x3 */
        0x10000000, /* adr x0 */
        0x58000050, /* ldr x16, 8 */
        0x18000040, /* ldr w0, 8 */
        0x9c000040, /* ldr q0, 8 */
        0xd8000000, /* prfm pldl1keep, 0 */
        0xd61f0200, /* br x16 */
        0xd63f0100, /* blr x8 */
        0xd65f03c0, /* ret */
        0xd4000001, /* svc #0 */
    };
    for (size_t i = 0; i < sizeof may / sizeof may[0]; i++)
        CHECK(aarch64_may_move(may[i]));
    for (size_t i = 0; i < sizeof may_not / sizeof may_not[0]; i++)
        CHECK(!aarch64_may_move(may_not[i]));
    return 0;
}

/* caml_process_external_interrupt: the state is 24 bytes from the thread pointer, the word at 0x100 in it. */
static int check_fields(void)
{
    /* OCaml 5.3.0, Debian 13 */
    static const uint32_t exact[] = {0xd503245f, 0xd53bd040, 0x91400000, 0x91004000, 0xf9400400,
                                     0x91040000, 0xc8dffc00, 0xb40000a0, 0xd65f03c0};
    /* paciasp; mrs x1; movz x2, lsl #16; movk x2; ldr x3, [x1, x2]; ldr x0, [x3, #0x100]; ret */
    static const uint32_t relaxed[] = {0xd503233f, 0xd53bd041, 0xd2a00002, 0xf2800302, 0xf8626823, 0xf9408060, 0xd65f03c0};
    /* cbz x0 first */
    static const uint32_t later[] = {0xd53bd040, 0xb40000a0, 0x91006000, 0xf9400000, 0xf9408000};
    /* mrs; ldr x0, [x0, #24]; stp x0, x1, [sp, #-16]!; ldp x0, x1, [sp], #16; ldr x0, [x0, #0x100]; ret */
    static const uint32_t changed[] = {0xd53bd040, 0xf9400c00, 0xa9bf07e0, 0xa8c107e0, 0xf9408000, 0xd65f03c0};
    CHECK(aarch64_first_field(exact, 24, is_data) == 0x100);
    CHECK(aarch64_first_field(exact, 32, is_data) == 0);
    CHECK(aarch64_first_field(relaxed, 24, is_data) == 0x100);
    CHECK(aarch64_first_field(later, 24, is_data) == 0);
    CHECK(aarch64_first_field(changed, 24, is_data) == 0);
    /* adrp x2; ldr x2, [x2, #LOW]; mrs x1; ldr x3, [x1, x2]; ldr x0, [x3, #0x100]; ret */
    static const uint64_t distance __attribute__((aligned(8))) = 24;
    static uint32_t by_table[] = {0, 0xf9400042, 0xd53bd041, 0xf8626823, 0xf9408060, 0xd65f03c0};
    by_table[0] = page_of(&distance, by_table, 2);
    by_table[1] |= low_of(&distance) / 8 << 10;
    CHECK(aarch64_first_field(by_table, 24, is_data) == 0x100);
    CHECK(aarch64_first_field(by_table, 24, is_no_data) == 0);
    return 0;
}

/* caml_memprof_stop. */
static int check_ints(void)
{
    static int started, other;
    /* OCaml 4.13.1, Debian 12: stp; mov; stp; adrp x19; add x19; ldr w0; cbz */
    static uint32_t two[] = {0xa9be7bfd, 0x910003fd, 0xa90153f3, 0, 0x91000273, 0xb9400260, 0x34000380};
    /* adrp x0; ldr w0, [x0, #LOW]; cbz */
    static uint32_t one[] = {0xd503233f, 0, 0xb9400000, 0x34000380};
    two[3] = page_of(&started, &two[3], 19);
    two[4] |= low_of(&started) << 10;
    one[1] = page_of(&other, &one[1], 0);
    one[2] |= low_of(&other) / 4 << 10;
    CHECK(aarch64_first_int(two, is_data) == &started);
    CHECK(aarch64_first_int(two, is_no_data) == NULL);
    CHECK(aarch64_first_int(one, is_data) == &other);
    two[5] = 0x34000380;
    CHECK(aarch64_first_int(two, is_data) == NULL);
    return 0;
}

static int check_instructions(void)
{
    static const struct {
        uint32_t code;
        enum instruction_kind kind;
        int64_t distance; /* of the target */
    } known[] = {
        {0x14000003, INSTRUCTION_JUMP, 12},        /* b */
        {0x17ffffff, INSTRUCTION_JUMP, -4},        /* b */
        {0x97ffaabc, INSTRUCTION_CALL, -87312},    /* bl */
        {0x5400008a, INSTRUCTION_CONDITION, 16},   /* b.ge */
        {0xb40000a0, INSTRUCTION_CONDITION, 20},   /* cbz x0 */
        {0x35000e27, INSTRUCTION_CONDITION, 452},  /* cbnz w7 */
        {0xb7f80061, INSTRUCTION_CONDITION, 12},   /* tbnz x1, #63 */
        {0xd63f0100, INSTRUCTION_CALL, 0},         /* blr x8 */
        {0xd63f093f, INSTRUCTION_CALL, 0},         /* blraaz x9 */
        {0xd61f0200, INSTRUCTION_END, 0},          /* br x16 */
        {0xd65f03c0, INSTRUCTION_END, 0},          /* ret */
        {0xd65f0bff, INSTRUCTION_END, 0},          /* retaa */
        {0x90000983, INSTRUCTION_DATA, 0},         /* adrp x3 */
        {0x58000050, INSTRUCTION_DATA, 0},         /* ldr x16, 8 */
        {0xd503233f, INSTRUCTION_PLAIN, 0},        /* paciasp */
        {0xd53bd040, INSTRUCTION_PLAIN, 0},        /* mrs x0, tpidr_el0 */
        {0xa9bf7bfd, INSTRUCTION_PLAIN, 0},        /* stp x29, x30, [sp, #-16]! */
        {0x00000000, INSTRUCTION_UNKNOWN, 0},      /* udf */
        {0xd4200000, INSTRUCTION_UNKNOWN, 0},      /* brk */
        {0x9c000040, INSTRUCTION_UNKNOWN, 0},      /* ldr q0, 8 */
    };
    enum { AT = 0x1000000 };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct instruction found = aarch64_instruction(known[i].code, AT);
        CHECK(found.kind == known[i].kind && found.length == 4);
        CHECK(found.target == (known[i].distance == 0 ? 0 : (uintptr_t)(AT + known[i].distance)));
    }
    return 0;
}

/* Copies 1 MiB away. tests/programs/moved_code_aarch64.c runs such copies. */
static int check_copies(void)
{
    enum { FROM = 0x1000000, TO = 0x1100000 };
    static const struct {
        uint32_t code;
        size_t count;
        uint32_t copy[4];
    } copies[] = {
        {0xa9bf7bfd, 1, {0xa9bf7bfd}},                         /* stp */
        {0xd65f03c0, 1, {0xd65f03c0}},                         /* ret */
        {0x14000003, 1, {0x17fc0003}},                         /* b */
        {0x5400008a, 2, {0x5400004b, 0x17fc0003}},             /* b.ge: b.lt over b */
        {0xb40000a0, 2, {0xb5000040, 0x17fc0004}},             /* cbz x0: cbnz over b */
        {0xb7f80061, 2, {0xb6f80041, 0x17fc0002}},             /* tbnz x1, #63: tbz over b */
        {0xb0000003, 2, {0xd2820003, 0xf2a02003}},             /* adrp x3: its page, 0x1001000 */
        {0x58000041, 3, {0xd2800101, 0xf2a02001, 0xf9400021}}, /* ldr x1, 8: from 0x1000008 */
        {0x18000041, 3, {0xd2800101, 0xf2a02001, 0xb9400021}}, /* ldr w1, 8 */
        {0x97ffaabc, 0, {0}},                                  /* bl: its return address would be another one */
        {0xd63f0100, 0, {0}},                                  /* blr */
        {0x5400008e, 0, {0}},                                  /* b.al */
        {0x9c000040, 0, {0}},                                  /* ldr q0, 8 */
    };
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++) {
        struct instruction instruction = aarch64_instruction(copies[i].code, FROM);
        uint8_t copy[INSTRUCTION_LONGEST] = {0};
        size_t length = aarch64_move(&instruction, copies[i].code, FROM, copy, TO);
        CHECK(length == copies[i].count * 4 && memcmp(copy, copies[i].copy, length) == 0);
    }
    struct instruction jump = aarch64_instruction(0x14000003, FROM);
    uint8_t copy[INSTRUCTION_LONGEST];
    CHECK(aarch64_move(&jump, 0x14000003, FROM, copy, FROM + (UINT64_C(200) << 20)) == 0);
    return 0;
}

int main(void)
{
    return check_moves() || check_fields() || check_ints() || check_instructions() || check_copies();
}
