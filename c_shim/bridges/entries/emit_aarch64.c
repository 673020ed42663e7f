/* See emit.h. A stub uses x9, x10, x16, x17 and the flags. Its counter changes in two instructions: of what a signal handler allocates
 * between them, the bytes are not counted. */
#include "emit.h"

#if defined(__aarch64__)

#include "kit/aarch64_moves.h"
#include "kit/thread_pointer.h"

/* First, the arguments. */
enum { LEFT = 9, CHARGE = 10, SCRATCH = 16, OTHER = 17, RETURN_ADDRESS = 30, ZERO = 31 };
enum { IF_EQUAL = 0, IF_NOT_EQUAL = 1, IF_NOT_BELOW = 2, IF_BELOW = 3 };

static void add(struct writer *writer, uint32_t code)
{
    memcpy(writer->room->start + writer->room->used, &code, sizeof code);
    writer->room->used += sizeof code;
}

/* An instruction with three registers. */
static void add_with_registers(struct writer *writer, uint32_t code, unsigned to, unsigned first, unsigned second)
{
    add(writer, code | second << 16 | first << 5 | to);
}

static void add_number(struct writer *writer, unsigned reg, uint64_t number)
{
    uint32_t code[4];
    size_t count = aarch64_load_number(code, reg, number);
    for (size_t i = 0; i < count; i++)
        add(writer, code[i]);
}

static void add_jump(struct writer *writer, uintptr_t to)
{
    uint32_t code = 0x14000000;
    writer->is_far |= !aarch64_put_distance(&code, 0, 26, to - writer_here(writer));
    add(writer, code);
}

static later add_branch(struct writer *writer, uint32_t code)
{
    add(writer, code);
    return writer->room->used - AARCH64_BYTES;
}

static later add_condition(struct writer *writer, unsigned condition)
{
    return add_branch(writer, 0x54000000 | condition);
}

void emit_here(struct writer *writer, later branch)
{
    uint32_t code;
    memcpy(&code, writer->room->start + branch, sizeof code);
    writer->is_far |= !aarch64_put_distance(&code, 5, 19, writer->room->used - branch);
    memcpy(writer->room->start + branch, &code, sizeof code);
}

/* The function has not signed its return address yet. */
later emit_if_inside(struct writer *writer, const struct entries_found *found)
{
    add_number(writer, SCRATCH, found->start);
    add_with_registers(writer, 0xcb000000, SCRATCH, RETURN_ADDRESS, SCRATCH); /* sub */
    add_number(writer, OTHER, found->end - found->start);
    add_with_registers(writer, 0xeb000000, ZERO, SCRATCH, OTHER); /* cmp */
    return add_condition(writer, IF_BELOW);
}

void emit_charge(struct writer *writer, const struct entry *entry, size_t number)
{
    unsigned size = entry->size;
    uintptr_t distance = (uintptr_t)&allocator_left[number] - (uintptr_t)thread_pointer();
    uint32_t low = (uint32_t)(distance & 0xfff) / 8 << 10;
    writer->is_far |= distance >> 24 != 0;
    if (entry->count != ARGUMENTS) {
        size = SCRATCH;
        add_with_registers(writer, 0x9b007c00, SCRATCH, entry->count, entry->size); /* mul */
    }
    add(writer, 0xd53bd040 | OTHER); /* mrs x17, tpidr_el0 */
    /* add x17, x17, #high, lsl #12 */
    add(writer, 0x91400000 | (uint32_t)(distance >> 12 & 0xfff) << 10 | OTHER << 5 | OTHER);
    add(writer, 0xf9400000 | low | OTHER << 5 | LEFT); /* ldr x9, [x17, #low] */
    add(writer, 0xf100001f | size << 5);               /* cmp size, #0 */
    /* csinc x10, size, xzr, ne: 1 for a size of 0 */
    add_with_registers(writer, 0x9a800400 | IF_NOT_EQUAL << 12, CHARGE, size, ZERO);
    add_with_registers(writer, 0xeb000000, LEFT, LEFT, CHARGE); /* subs */
    add(writer, 0xf9000000 | low | OTHER << 5 | LEFT);          /* str x9, [x17, #low] */
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
    unsigned block = entry->block;
    add_with_registers(writer, 0x0b000000 | 5 << 10, SCRATCH, block, block); /* add w16, block, block, lsl #5 */
    add(writer, 0x530c7c00 | SCRATCH << 5 | SCRATCH);                        /* lsr w16, w16, #12 */
    add_number(writer, OTHER, (uintptr_t)shim_services.block_filter);
    add_with_registers(writer, 0x38606800, SCRATCH, OTHER, SCRATCH); /* ldrb w16, [x17, x16] */
    return add_branch(writer, 0x34000000 | SCRATCH);                 /* cbz w16 */
}

extern const uint8_t entries_due[] HIDDEN;

void emit_due(struct writer *writer, const struct entry *entry)
{
    add_number(writer, OTHER, (uintptr_t)entry);
    add_number(writer, SCRATCH, (uintptr_t)entries_due);
    add(writer, 0xd61f0000 | SCRATCH << 5); /* br x16 */
}

bool emit_moved(struct writer *writer, const struct entries_found *all, const struct entry_found *found,
                const struct stub *stubs)
{
    uint32_t code;
    uint8_t moved[INSTRUCTION_LONGEST];
    memcpy(&code, found->begins, sizeof code);
    struct instruction instruction = aarch64_instruction(code, found->start);
    for (size_t i = 0; i < all->count; i++)
        if (instruction.target == all->entries[i].start)
            instruction.target = stubs[i].original;
    size_t length = aarch64_move(&instruction, code, found->start, moved, writer_here(writer));
    if (length == 0)
        return false;
    memcpy(writer->room->start + writer->room->used, moved, length);
    writer->room->used += length;
    if (instruction.kind != INSTRUCTION_JUMP && instruction.kind != INSTRUCTION_END)
        add_jump(writer, found->start + found->moved);
    return true;
}

void emit_landing(struct writer *writer, uintptr_t to)
{
    add(writer, 0xd503245f); /* bti c */
    add_jump(writer, to);
}

bool emit_site(const struct entry_site *site, uintptr_t to)
{
    uint32_t code;
    memcpy(&code, (const void *)site->at, sizeof code);
    return aarch64_put_distance(&code, 0, 26, to - site->at) && code_put((void *)site->at, &code, sizeof code);
}

uintptr_t emit_jump_target(uintptr_t at)
{
    uint32_t code;
    struct iovec memory = {(void *)at, sizeof code};
    if (shim_services.copy_foreign(&code, sizeof code, &memory, 1) != sizeof code || !aarch64_is_jump(code))
        return 0;
    return at + aarch64_distance(code, 0, 26);
}

/* Passes the arguments as an array, and stands on the stack in place of the function. */
__asm__(".pushsection .text,\"ax\",@progbits\n\t.balign 4\n\t.hidden entries_due\n\t.globl entries_due\n\t"
        ".type entries_due, @function\nentries_due:\n\t.cfi_startproc\n\thint #34\n\t"
        "stp x29, x30, [sp, #-64]!\n\t.cfi_def_cfa_offset 64\n\t.cfi_offset x29, -64\n\t.cfi_offset x30, -56\n\t"
        "mov x29, sp\n\tstp x0, x1, [sp, #16]\n\tstp x2, x3, [sp, #32]\n\tstp x4, x5, [sp, #48]\n\t"
        "mov x0, x17\n\tadd x1, sp, #16\n\tbl entry_due\n\t"
        "ldp x29, x30, [sp], #64\n\t.cfi_def_cfa_offset 0\n\t.cfi_restore x29\n\t.cfi_restore x30\n\tret\n\t"
        ".cfi_endproc\n\t.size entries_due, .-entries_due\n\t.popsection");

#endif
