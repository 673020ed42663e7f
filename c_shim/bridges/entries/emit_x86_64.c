/* See emit.h. A stub uses rax, r11 and the flags. */
#include "emit.h"

#if defined(__x86_64__)

#include "kit/instructions.h"
#include "kit/thread_pointer.h"

#include <string.h>

enum { JUMP = 5, RAX = 0 };

/* Numbers of the registers that pass arguments. */
static const uint8_t registers[ARGUMENTS] = {7, 6, 2, 1, 8, 9};

static void add(struct writer *writer, const void *bytes, size_t length)
{
    memcpy(writer->room->start + writer->room->used, bytes, length);
    writer->room->used += length;
}

#define ADD(WRITER, ...)                                                                                               \
    do {                                                                                                               \
        const uint8_t bytes_[] = {__VA_ARGS__};                                                                        \
        add(WRITER, bytes_, sizeof bytes_);                                                                            \
    } while (0)

static void add_number(struct writer *writer, int64_t number)
{
    int32_t near = (int32_t)number;
    writer->is_far |= near != number;
    add(writer, &near, sizeof near);
}

static void add_address(struct writer *writer, const void *address)
{
    add(writer, &address, sizeof address);
}

/* The distance to an address behind the instruction that ends with it. */
static void add_distance(struct writer *writer, uintptr_t to)
{
    add_number(writer, (int64_t)(to - (writer_here(writer) + 4)));
}

static later add_condition(struct writer *writer, uint8_t condition)
{
    ADD(writer, 0x0f, condition, 0, 0, 0, 0);
    return writer->room->used;
}
enum { IF_BELOW = 0x82, IF_NOT_BELOW = 0x83, IF_EQUAL = 0x84 };

void emit_here(struct writer *writer, later branch)
{
    int32_t distance = (int32_t)(writer->room->used - branch);
    memcpy(writer->room->start + branch - sizeof distance, &distance, sizeof distance);
}

/* Three bytes: an instruction with two registers. */
static void add_with_registers(struct writer *writer, uint8_t opcode, uint8_t reg, uint8_t operand)
{
    ADD(writer, 0x48 | (reg >> 3 & 1) << 2 | (operand >> 3 & 1), opcode, 0xc0 | (reg & 7) << 3 | (operand & 7));
}

/* Four instructions and a jump. */
later emit_if_inside(struct writer *writer, const struct entries_found *found)
{
    ADD(writer, 0x48, 0x8b, 0x04, 0x24); /* mov (%rsp), %rax */
    ADD(writer, 0x4c, 0x8d, 0x1d);       /* lea start(%rip), %r11 */
    add_distance(writer, found->start);
    ADD(writer, 0x4c, 0x29, 0xd8); /* sub %r11, %rax */
    ADD(writer, 0x48, 0x3d);       /* cmp $length, %rax */
    add_number(writer, (int64_t)(found->end - found->start));
    return add_condition(writer, IF_BELOW);
}

/* The size in a register. */
static uint8_t add_size(struct writer *writer, const struct entry *entry)
{
    if (entry->count == ARGUMENTS)
        return registers[entry->size];
    add_with_registers(writer, 0x89, registers[entry->count], RAX); /* mov count, %rax */
    uint8_t size = registers[entry->size];
    ADD(writer, 0x48 | (size >> 3 & 1), 0x0f, 0xaf, 0xc0 | (size & 7)); /* imul size, %rax */
    return RAX;
}

/* Leaves the carry. */
void emit_charge(struct writer *writer, const struct entry *entry, size_t number)
{
    uint8_t size = add_size(writer, entry);
    ADD(writer, 0x48 | (size >> 3 & 1), 0x83, 0xf8 | (size & 7), 1); /* cmp $1, size */
    /* sbb size, %fs:counter */
    ADD(writer, 0x64, 0x48 | (size >> 3 & 1) << 2, 0x19, 0x04 | (size & 7) << 3, 0x25);
    add_number(writer, (int64_t)((uintptr_t)&allocator_left[number] - (uintptr_t)thread_pointer()));
}

later emit_if_due(struct writer *writer)
{
    return add_condition(writer, IF_BELOW);
}

later emit_if_not_due(struct writer *writer)
{
    return add_condition(writer, IF_NOT_BELOW);
}

later emit_if_unmarked(struct writer *writer, const struct entry *entry)
{
    uint8_t block = registers[entry->block];
    ADD(writer, 0x40 | (block >> 3 & 1), 0x6b, 0xc0 | (block & 7), 33); /* imul $33, block, %eax */
    ADD(writer, 0xc1, 0xe8, 12);                                        /* shr $12, %eax */
    ADD(writer, 0x49, 0xbb);                                            /* mov $filter, %r11 */
    add_address(writer, shim_services.block_filter);
    ADD(writer, 0x42, 0x80, 0x3c, 0x18, 0); /* cmpb $0, (%rax, %r11) */
    return add_condition(writer, IF_EQUAL);
}

extern const uint8_t entries_due[] HIDDEN;

void emit_due(struct writer *writer, const struct entry *entry)
{
    ADD(writer, 0x49, 0xbb); /* mov $entry, %r11 */
    add_address(writer, entry);
    ADD(writer, 0xff, 0x25, 0, 0, 0, 0); /* jmp *(%rip), and where to */
    add_address(writer, entries_due);
}

bool emit_moved(struct writer *writer, const struct entries_found *all, const struct entry_found *found,
                const struct stub *stubs)
{
    uintptr_t at = found->start + found->skipped;
    size_t done = 0;
    struct instruction instruction = {0};
    while (done < found->moved && instruction.kind != INSTRUCTION_JUMP) {
        const uint8_t *code = found->begins + found->skipped + done;
        uint8_t moved[INSTRUCTION_LONGEST];
        instruction = instruction_at(code, found->moved - done, at + done);
        for (size_t i = 0; i < all->count; i++)
            if (instruction.target == all->entries[i].start)
                instruction.target = stubs[i].original;
        size_t length = instruction_move(&instruction, code, at + done, moved, writer_here(writer));
        if (length == 0)
            return false;
        add(writer, moved, length);
        done += instruction.length;
    }
    if (instruction.kind == INSTRUCTION_JUMP)
        return true;
    ADD(writer, 0xe9);
    add_distance(writer, at + found->moved);
    return true;
}

void emit_landing(struct writer *writer, uintptr_t to)
{
    ADD(writer, 0xf3, 0x0f, 0x1e, 0xfa, 0xe9); /* endbr64; jmp */
    add_distance(writer, to);
}

bool emit_site(const struct entry_site *site, uintptr_t to)
{
    int64_t distance = (int64_t)(to - (site->at + 4));
    int32_t near = (int32_t)distance;
    return near == distance && code_put((void *)site->at, &near, sizeof near);
}

uintptr_t emit_jump_target(uintptr_t at)
{
    uint8_t code[JUMP];
    struct iovec memory = {(void *)at, sizeof code};
    int32_t distance;
    if (shim_services.copy_foreign(code, sizeof code, &memory, 1) != sizeof code || code[0] != 0xe9)
        return 0;
    memcpy(&distance, code + 1, sizeof distance);
    return at + sizeof code + (uintptr_t)(intptr_t)distance;
}

/* Passes the arguments as an array, and stands on the stack in place of the function. */
__asm__(".pushsection .text,\"ax\",@progbits\n\t.hidden entries_due\n\t.globl entries_due\n\t"
        ".type entries_due, @function\nentries_due:\n\t.cfi_startproc\n\tendbr64\n\t"
        "pushq %r9\n\t.cfi_adjust_cfa_offset 8\n\tpushq %r8\n\t.cfi_adjust_cfa_offset 8\n\t"
        "pushq %rcx\n\t.cfi_adjust_cfa_offset 8\n\tpushq %rdx\n\t.cfi_adjust_cfa_offset 8\n\t"
        "pushq %rsi\n\t.cfi_adjust_cfa_offset 8\n\tpushq %rdi\n\t.cfi_adjust_cfa_offset 8\n\t"
        "movq %r11, %rdi\n\tmovq %rsp, %rsi\n\tsubq $8, %rsp\n\t.cfi_adjust_cfa_offset 8\n\t"
        "call entry_due\n\taddq $56, %rsp\n\t.cfi_adjust_cfa_offset -56\n\tret\n\t"
        ".cfi_endproc\n\t.size entries_due, .-entries_due\n\t.popsection");

#endif
