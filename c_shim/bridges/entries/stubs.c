/* The code near an allocator that its functions are led to.
 *
 * A function keeps its `endbr64` if it has one. The jump behind it leads to its stub, which counts the call in the thread's own
 * counter and falls into the instructions that the jump has replaced, which go on in the function. A stub uses rax, r11 and
 * the flags: a caller cannot expect these to be kept, since each of the functions may call libc. Only when a sample may be
 * due is entry_due called, with the arguments.
 *
 * A call from the allocator itself, told by its return address, is not counted: the outer one is. Nor is a jump or a call from one
 * of the functions to another one: it is made to lead behind the stub. */
#define _GNU_SOURCE
#include "entries.h"

#include "kit/code.h"
#include "kit/instructions.h"
#include "kit/thread_pointer.h"

#include <string.h>

#if defined(__x86_64__)

enum {
    JUMP = 5,
    /* At most, with the moved instructions. */
    STUB = 256,
    RAX = 0,
};

/* Where a stub's own code goes. */
struct writer {
    struct code_room *room;
    bool is_far; /* a distance did not fit */
};

/* Numbers of the registers that pass arguments. */
static const uint8_t registers[ARGUMENTS] = {7, 6, 2, 1, 8, 9};

static uintptr_t here(const struct writer *writer)
{
    return (uintptr_t)writer->room->start + writer->room->used;
}

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
    add_number(writer, (int64_t)(to - (here(writer) + 4)));
}

/* A conditional jump whose target comes later. */
static size_t add_condition(struct writer *writer, uint8_t condition)
{
    ADD(writer, 0x0f, condition, 0, 0, 0, 0);
    return writer->room->used;
}
enum { IF_BELOW = 0x82, IF_NOT_BELOW = 0x83, IF_EQUAL = 0x84 };

static void lead_here(struct writer *writer, size_t condition)
{
    int32_t distance = (int32_t)(writer->room->used - condition);
    memcpy(writer->room->start + condition - sizeof distance, &distance, sizeof distance);
}

/* Three bytes: an instruction with two registers. */
static void add_with_registers(struct writer *writer, uint8_t opcode, uint8_t reg, uint8_t operand)
{
    ADD(writer, 0x48 | (reg >> 3 & 1) << 2 | (operand >> 3 & 1), opcode, 0xc0 | (reg & 7) << 3 | (operand & 7));
}

/* Whether the return address is outside of the allocator's code: four instructions and a jump. */
static size_t add_range_check(struct writer *writer, const struct entries_found *found)
{
    ADD(writer, 0x48, 0x8b, 0x04, 0x24); /* mov (%rsp), %rax */
    ADD(writer, 0x4c, 0x8d, 0x1d);       /* lea start(%rip), %r11 */
    add_distance(writer, found->start);
    ADD(writer, 0x4c, 0x29, 0xd8); /* sub %r11, %rax */
    ADD(writer, 0x48, 0x3d);       /* cmp $length, %rax */
    add_number(writer, (int64_t)(found->end - found->start));
    return add_condition(writer, IF_BELOW);
}

/* Subtracts the size in this register, or 1 instead of 0, from the thread's counter; leaves the carry. */
static void add_charge(struct writer *writer, uint8_t size, size_t number)
{
    ADD(writer, 0x48 | (size >> 3 & 1), 0x83, 0xf8 | (size & 7), 1); /* cmp $1, size */
    /* sbb size, %fs:counter */
    ADD(writer, 0x64, 0x48 | (size >> 3 & 1) << 2, 0x19, 0x04 | (size & 7) << 3, 0x25);
    add_number(writer, (int64_t)((uintptr_t)&allocator_left[number] - (uintptr_t)thread_pointer()));
}

/* Compares the filter's byte of the block in this register with 0: see shim_filter_granule. */
static void add_filter_check(struct writer *writer, uint8_t block)
{
    ADD(writer, 0x40 | (block >> 3 & 1), 0x6b, 0xc0 | (block & 7), 33); /* imul $33, block, %eax */
    ADD(writer, 0xc1, 0xe8, 12);                                        /* shr $12, %eax */
    ADD(writer, 0x49, 0xbb);                                            /* mov $filter, %r11 */
    add_address(writer, shim_services.block_filter);
    ADD(writer, 0x42, 0x80, 0x3c, 0x18, 0); /* cmpb $0, (%rax, %r11) */
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

extern const uint8_t entries_due[] HIDDEN;

static void add_due(struct writer *writer, const struct entry *entry)
{
    ADD(writer, 0x49, 0xbb); /* mov $entry, %r11 */
    add_address(writer, entry);
    ADD(writer, 0xff, 0x25, 0, 0, 0, 0); /* jmp *(%rip), and where to */
    add_address(writer, entries_due);
}

struct stub {
    uintptr_t start, original;
};

/* What the jump replaces, and the way back. A jump to another of the functions leads behind its stub. */
static bool add_moved(struct writer *writer, const struct entries_found *all, const struct entry_found *found,
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
        size_t length = instruction_move(&instruction, code, at + done, moved, here(writer));
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

static bool add_stub(struct writer *writer, const struct entries_found *all, size_t index, struct entry *entry,
                     size_t number, struct stub *stubs)
{
    const struct entry_found *found = &all->entries[index];
    struct stub *stub = &stubs[index];
    size_t inside = 0;
    stub->start = here(writer);
    enum entry_kind kind = entry->row->kind;
    if (kind == ENTRY_ALLOCATES || kind == ENTRY_STORES)
        inside = add_range_check(writer, all);
    size_t is_due = 0, is_none = 0;
    if (kind != ENTRY_FREES && kind != ENTRY_IN_PLACE) {
        add_charge(writer, add_size(writer, entry), number);
        is_due = kind == ENTRY_RESIZES ? add_condition(writer, IF_BELOW) : 0;
    }
    if (kind == ENTRY_FREES || kind == ENTRY_RESIZES) {
        add_filter_check(writer, registers[entry->block]);
        is_none = add_condition(writer, IF_EQUAL);
    } else if (kind != ENTRY_IN_PLACE) {
        is_none = add_condition(writer, IF_NOT_BELOW);
    }
    if (is_due != 0)
        lead_here(writer, is_due);
    add_due(writer, entry);
    if (inside != 0)
        lead_here(writer, inside);
    if (is_none != 0)
        lead_here(writer, is_none);
    stub->original = here(writer);
    if (!add_moved(writer, all, found, stubs))
        return false;
    /* entry_due calls it through a pointer, so it must begin with endbr64. */
    entry->original = here(writer);
    ADD(writer, 0xf3, 0x0f, 0x1e, 0xfa, 0xe9); /* endbr64; jmp */
    add_distance(writer, stub->original);
    return true;
}

/* Where the jump to the stub stands, and what it replaces. */
static void *place_of(const struct entry_found *found)
{
    return (void *)(found->start + found->skipped);
}

static bool put_site(const struct entry_site *site, uintptr_t to)
{
    int64_t distance = (int64_t)(to - (site->at + 4));
    int32_t near = (int32_t)distance;
    return near == distance && code_put((void *)site->at, &near, sizeof near);
}

/* Whether it is among what a jump to a stub replaces. */
static bool is_moved(const struct entries_found *found, const struct entry_site *site)
{
    for (size_t i = 0; i < found->count; i++)
        if (site->at - (uintptr_t)place_of(&found->entries[i]) < found->entries[i].moved)
            return true;
    return false;
}

void stubs_take_back(const struct entries_found *found)
{
    for (size_t i = 0; i < found->site_count; i++)
        put_site(&found->sites[i], found->entries[found->sites[i].to].start);
    /* A moved head may contain a site. */
    for (size_t i = 0; i < found->count; i++)
        code_put(place_of(&found->entries[i]), found->entries[i].begins + found->entries[i].skipped,
                 found->entries[i].moved);
}

bool stubs_put(const struct entries_found *found, struct entry *entries, size_t number)
{
    struct code_room room;
    struct stub stubs[ENTRIES];
    if (!code_room_open(&room, found->object, found->count * STUB))
        return false;
    struct writer writer = {.room = &room};
    bool is_made = true;
    for (size_t i = 0; i < found->count; i++)
        stubs[i] = (struct stub){here(&writer), here(&writer)};
    /* The second time it is known where all of them are. */
    for (size_t turn = 0; turn < 2; turn++) {
        room.used = 0;
        writer.is_far = false;
        for (size_t i = 0; i < found->count && is_made; i++)
            is_made = add_stub(&writer, found, i, &entries[i], number, stubs);
    }
    if (!is_made || writer.is_far || !code_room_close(&room))
        return false;
    bool is_put = true;
    for (size_t i = 0; i < found->site_count && is_put; i++)
        is_put = is_moved(found, &found->sites[i]) ||
                 put_site(&found->sites[i], stubs[found->sites[i].to].original);
    for (size_t i = 0; i < found->count && is_put; i++) {
        entries[i].jump = (uintptr_t)place_of(&found->entries[i]);
        entries[i].stub = stubs[i].start;
        is_put = code_put_jump((void *)entries[i].jump, (const void *)entries[i].stub);
    }
    if (!is_put)
        stubs_take_back(found);
    return is_put;
}

bool stubs_are_there(const struct redirected *of)
{
    const struct entry *entry = &of->entries[0];
    uint8_t code[JUMP];
    struct iovec memory = {(void *)entry->jump, sizeof code};
    int32_t distance;
    if (shim_services.copy_foreign(code, sizeof code, &memory, 1) != sizeof code || code[0] != 0xe9)
        return false;
    memcpy(&distance, code + 1, sizeof distance);
    return entry->jump + sizeof code + (uintptr_t)(intptr_t)distance == entry->stub;
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
