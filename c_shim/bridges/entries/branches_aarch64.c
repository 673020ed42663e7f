/* See branches.h. Every instruction has four bytes, and a jump replaces one: nothing can jump between those that are moved. Words
 * of data between functions are taken for instructions. */
#include "branches.h"

#if defined(__aarch64__)

#include "kit/aarch64_moves.h"

static uint32_t word_of(const uint8_t *code)
{
    uint32_t word;
    memcpy(&word, code, sizeof word);
    return word;
}

/* What allows an indirect call (bti, paciasp) is moved, too: the page that is changed is mapped without a demand for it. */
const char *branches_plan_head(const uint8_t *code, size_t own, size_t bytes, struct entry_found *entry)
{
    (void)bytes;
    if (own < AARCH64_BYTES)
        return "is too short";
    struct instruction first = aarch64_instruction(word_of(code), entry->start);
    uint8_t copy[INSTRUCTION_LONGEST];
    /* What can be moved can be moved a page away. */
    if (aarch64_move(&first, word_of(code), entry->start, copy, entry->start + 4096) == 0)
        return "begins with an instruction that is not known";
    entry->moved = AARCH64_BYTES;
    return NULL;
}

void branches_of_function(const uint8_t *code, size_t bytes, const struct entry_found *entry, branch_visitor *visit, void *argument)
{
    for (size_t at = 0; at + AARCH64_BYTES <= bytes; at += AARCH64_BYTES) {
        uintptr_t address = entry->start + at;
        struct instruction next = aarch64_instruction(word_of(code + at), address);
        bool is_short = next.kind == INSTRUCTION_CONDITION && at >= entry->moved;
        if (next.target != 0)
            visit(argument, &(struct branch){address, next.target, address, is_short, false});
    }
}

void branches_in_file(const uint8_t *code, size_t bytes, size_t room, uintptr_t address, struct range range, branch_visitor *visit,
                      void *argument)
{
    for (size_t at = 0; at < bytes && at + AARCH64_BYTES <= room; at += AARCH64_BYTES) {
        uint32_t word = word_of(code + at);
        if (!aarch64_is_jump(word) && !aarch64_is_call(word))
            continue;
        uintptr_t target = address + at + aarch64_distance(word, 0, 26);
        if (target >= range.start && target < range.end)
            visit(argument, &(struct branch){.at = address + at, .target = target, .may_be_none = true});
    }
}

#endif
