/* Moves random code: `compare` does the same there as where it was. `lengths` reads lines of hexadecimal bytes, and prints what the
 * first instruction is: its kind and its length. */
#include "bridges/kit/instructions.c"

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

/* ---- lengths ---- */

static int lengths(void)
{
    char line[256];
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint8_t code[16] = {0};
        size_t count = 0;
        for (unsigned byte; count < sizeof code && sscanf(line + 2 * count, "%2x", &byte) == 1; count++)
            code[count] = (uint8_t)byte;
        struct instruction found = instruction_at(code, count, 0x1000000);
        printf("%d %zu %zu %lld\n", found.kind, found.length, found.distance_at,
               found.target == 0 ? 0 : (long long)found.target - 0x1000000);
    }
    return 0;
}

/* ---- moved code ---- */

enum { PAGE = 4096, DATA = 2048, CALLS = 4 };

/* Registers that the code changes: rax, rcx, rdx, rsi, rdi, r8 to r11; and the flags. */
struct registers {
    uint64_t values[9];
    uint64_t flags;
};

/* Loads the registers, calls the code, and stores them. */
void call_with(struct registers *registers, const void *code);
__asm__(".text\ncall_with:\n\tpush %rbx\n\tpushq $2\n\tpopfq\n\tmov %rdi, %rbx\n\tmov %rsi, %rax\n\tpush %rax\n\t"
        "mov 0(%rbx), %rax\n\tmov 8(%rbx), %rcx\n\tmov 16(%rbx), %rdx\n\tmov 24(%rbx), %rsi\n\t"
        "mov 32(%rbx), %rdi\n\tmov 40(%rbx), %r8\n\tmov 48(%rbx), %r9\n\tmov 56(%rbx), %r10\n\tmov 64(%rbx), %r11\n\t"
        "call *(%rsp)\n\t"
        "mov %rax, 0(%rbx)\n\tpushfq\n\tpop %rax\n\tmov %rax, 72(%rbx)\n\t"
        "mov %rcx, 8(%rbx)\n\tmov %rdx, 16(%rbx)\n\tmov %rsi, 24(%rbx)\n\t"
        "mov %rdi, 32(%rbx)\n\tmov %r8, 40(%rbx)\n\tmov %r9, 48(%rbx)\n\tmov %r10, 56(%rbx)\n\tmov %r11, 64(%rbx)\n\t"
        "pop %rax\n\tpop %rbx\n\tret\n");

static uint8_t *at;

static void add(const void *bytes, size_t length)
{
    memcpy(at, bytes, length);
    at += length;
}

static void add_distance(const uint8_t *to)
{
    int32_t distance = (int32_t)(to - (at + 4));
    add(&distance, sizeof distance);
}

/* Of those nine. */
static uint8_t a_register(void)
{
    static const uint8_t numbers[] = {0, 1, 2, 6, 7, 8, 9, 10, 11};
    return numbers[next_number(sizeof numbers)];
}

/* Arithmetic, moves, loads and stores by a distance, and conditional jumps to `out`. */
static void add_random(const uint8_t *page, const uint8_t *out)
{
    static const uint8_t operations[] = {0x01, 0x09, 0x11, 0x19, 0x21, 0x29, 0x31, 0x39, 0x85, 0x89, 0x8b, 0x03, 0x3b};
    uint8_t reg = a_register(), other = a_register();
    uint8_t wide = (uint8_t)(0x48 | (reg >> 3) << 2), operation = operations[next_number(sizeof operations)];
    const uint8_t *data = page + DATA + 8 * next_number(64);
    switch (next_number(6)) {
    case 0:
    case 1:
        add((uint8_t[]){wide | other >> 3, operation, 0xc0 | (reg & 7) << 3 | (other & 7)}, 3);
        break;
    case 2:
        add((uint8_t[]){wide, operation == 0x85 ? 0x8b : operation, (reg & 7) << 3 | 5}, 3);
        add_distance(data);
        break;
    case 3:
        add((uint8_t[]){0x48 | reg >> 3, 0x83, 0xc0 | next_number(8) << 3 | (reg & 7), (uint8_t)next_number(256)}, 4);
        break;
    case 4:
        if (out - (at + 2) < 128 && next_number(2) == 0) {
            add((uint8_t[]){0x70 | (uint8_t)next_number(16), (uint8_t)(out - (at + 2))}, 2);
        } else {
            add((uint8_t[]){0x0f, 0x80 | (uint8_t)next_number(16)}, 2);
            add_distance(out);
        }
        break;
    default:
        add((uint8_t[]){wide, 0x8d, (reg & 7) << 3 | 5}, 3);
        add_distance(data);
    }
}

/* Moves at least 5 bytes from `from` to `to`; how many. 0: they cannot be moved. */
static size_t move(const uint8_t *from, uint8_t *to)
{
    size_t moved = 0;
    while (moved < 5) {
        uintptr_t address = (uintptr_t)from + moved;
        struct instruction instruction = instruction_at(from + moved, 16, address);
        size_t length = instruction_move(&instruction, from + moved, address, to, (uintptr_t)to);
        if (length == 0)
            return 0;
        to += length;
        moved += instruction.length;
    }
    at = to;
    add("\xe9", 1);
    add_distance(from + moved);
    return moved;
}

static void fill(uint8_t *page, struct registers *registers)
{
    for (size_t i = 0; i < 512; i++)
        page[DATA + i] = (uint8_t)next_number(256);
    for (size_t i = 0; i < 9; i++)
        registers->values[i] = next_number(4) == 0 ? next_number(3) : next_number(UINT64_MAX);
}

static int compare(size_t turns)
{
    uint8_t *page = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *room = page + 32 * PAGE, before[512], after[512];
    size_t differences = 0;
    for (size_t turn = 0; turn < turns; turn++) {
        uint8_t *out = page + 120;
        at = page + next_number(16);
        const uint8_t *start = at;
        while (at < page + 100)
            add_random(page, out);
        while (at < out)
            add("\x90", 1);
        /* A jump out is seen in a register. */
        add("\xc3", 1);
        uint8_t *moved = room + next_number(20 * PAGE);
        if (move(start, moved) == 0) {
            printf("turn %zu: not moved\n", turn);
            return 1;
        }
        for (size_t call = 0; call < CALLS; call++) {
            struct registers first, second;
            fill(page, &first);
            second = first;
            memcpy(before, page + DATA, sizeof before);
            call_with(&first, start);
            memcpy(after, page + DATA, sizeof after);
            memcpy(page + DATA, before, sizeof before);
            call_with(&second, moved);
            differences += memcmp(&first, &second, sizeof first) != 0 || memcmp(after, page + DATA, sizeof after) != 0;
        }
    }
    printf("%zu differences\n", differences);
    return differences != 0;
}

int main(int count, char **arguments)
{
    if (count == 2 && strcmp(arguments[1], "lengths") == 0)
        return lengths();
    state = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
    return compare(count > 2 ? strtoull(arguments[2], NULL, 10) : 1000);
}
