/* Moves random instructions of aarch64: `compare TURNS SEED` checks that each does the same there as where it was. */
#include "kit/aarch64_moves.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t state = 1;

static uint64_t next_number(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* Registers x0 to x9, and the flags. The code sets x9 to show which way it took. */
enum { SHOWN = 9, REGISTERS = 10 };
struct registers {
    uint64_t values[REGISTERS], flags;
};

/* Loads the registers, calls the code, and stores them. */
void call_with(struct registers *registers, const void *code);
__asm__(".text\n\t.balign 4\ncall_with:\n\tstp x29, x30, [sp, #-32]!\n\tstr x19, [sp, #16]\n\tmov x19, x0\n\tmov x16, x1\n\t"
        "ldr x10, [x19, #80]\n\tmsr nzcv, x10\n\tldp x0, x1, [x19]\n\tldp x2, x3, [x19, #16]\n\tldp x4, x5, [x19, #32]\n\t"
        "ldp x6, x7, [x19, #48]\n\tldp x8, x9, [x19, #64]\n\tblr x16\n\tstp x0, x1, [x19]\n\tstp x2, x3, [x19, #16]\n\t"
        "stp x4, x5, [x19, #32]\n\tstp x6, x7, [x19, #48]\n\tstp x8, x9, [x19, #64]\n\tmrs x10, nzcv\n\tstr x10, [x19, #80]\n\t"
        "ldr x19, [sp, #16]\n\tldp x29, x30, [sp], #32\n\tret\n");

/* The page that the code is on, with data, and how far away its copies may be. */
enum { PAGE = 4096, DATA = 2048, DATA_BYTES = 512, ROOM = 64 << 20 };
enum { SHOW_NEXT = 0xd2800029, SHOW_OUT = 0xd2800049, RETURN = 0xd65f03c0 }; /* mov x9, #1; mov x9, #2; ret */

static uint32_t put(uint32_t code, unsigned first, unsigned bits, int64_t distance)
{
    if (!aarch64_put_distance(&code, first, bits, (uint64_t)distance))
        exit(3);
    return code;
}

/* For code at `at`; branches lead to `out`. */
static uint32_t random_instruction(const uint8_t *page, const uint8_t *at, const uint8_t *out)
{
    static const uint32_t operations[] = {0x8b000000, 0xcb000000, 0xab000000, 0xeb000000, 0xca000000, 0x9b007c00};
    uint32_t reg = (uint32_t)next_number(SHOWN), turned = (uint32_t)next_number(2) << 24;
    int64_t to_data = page + DATA + 8 * next_number(DATA_BYTES / 8) - at, to_out = out - at;
    switch (next_number(9)) {
    case 0:
        return put(0x14000000, 0, 26, to_out);
    case 1:
        return put(0x54000000 | (uint32_t)next_number(14), 5, 19, to_out);
    case 2:
        return put(0x34000000 | (uint32_t)next_number(2) << 31 | turned | reg, 5, 19, to_out);
    case 3: {
        uint32_t bit = (uint32_t)next_number(64);
        return put(0x36000000 | bit >> 5 << 31 | (bit & 31) << 19 | turned | reg, 5, 14, to_out);
    }
    case 4:
        return put(0x18000000 | (uint32_t)next_number(2) << 30 | reg, 5, 19, to_data);
    case 5:
        return 0x10000000 | (uint32_t)(to_data & 3) << 29 | (uint32_t)(to_data >> 2 & 0x7ffff) << 5 | reg;
    case 6:
        return 0x90000000 | (uint32_t)next_number(1 << 2) << 29 | (uint32_t)next_number(1 << 19) << 5 | reg;
    default:
        return operations[next_number(6)] | (uint32_t)next_number(SHOWN) << 16 | (uint32_t)next_number(SHOWN) << 5 | reg;
    }
}

static void fill(uint8_t *page, struct registers *registers)
{
    for (size_t i = 0; i < DATA_BYTES; i++)
        page[DATA + i] = (uint8_t)next_number(256);
    for (size_t i = 0; i < REGISTERS; i++)
        registers->values[i] = next_number(4) == 0 ? next_number(3) : next_number(UINT64_MAX);
    registers->flags = next_number(16) << 28;
}

/* Copies the instruction; false: it cannot be moved. */
static bool move(const uint32_t *from, uint8_t *to)
{
    struct instruction instruction = aarch64_instruction(*from, (uintptr_t)from);
    size_t length = aarch64_move(&instruction, *from, (uintptr_t)from, to, (uintptr_t)to);
    uint32_t back = put(0x14000000, 0, 26, (const uint8_t *)(from + 1) - (to + length));
    memcpy(to + length, &back, sizeof back);
    __builtin___clear_cache((char *)to, (char *)to + length + sizeof back);
    return length != 0;
}

static int compare(size_t turns)
{
    uint8_t *page = mmap(NULL, ROOM, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t differences = 0, slot = (ROOM - 2 * PAGE) / turns / 4 * 4;
    for (size_t turn = 0; turn < turns; turn++) {
        uint32_t *at = (uint32_t *)page + next_number(16), *out = at + 8 + next_number(300);
        /* No copy lies where another one was: qemu-system 10.0 then ran the old one. */
        uint8_t *moved = page + PAGE + turn * slot + 4 * next_number(slot / 4 - INSTRUCTION_LONGEST);
        at[0] = random_instruction(page, (uint8_t *)at, (uint8_t *)out);
        at[1] = SHOW_NEXT;
        out[0] = SHOW_OUT;
        at[2] = out[1] = RETURN;
        __builtin___clear_cache((char *)page, (char *)page + PAGE);
        if (!move(at, moved)) {
            printf("turn %zu: %08x is not moved\n", turn, at[0]);
            return 1;
        }
        struct registers first, second;
        fill(page, &first);
        second = first;
        call_with(&first, at);
        call_with(&second, moved);
        if (memcmp(&first, &second, sizeof first) != 0 && differences++ < 10)
            fprintf(stderr, "%08x differs\n", at[0]);
    }
    printf("%zu differences\n", differences);
    return differences != 0;
}

int main(int count, char **arguments)
{
    state = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
    return compare(count > 2 ? strtoull(arguments[2], NULL, 10) : 1000);
}
