/* See branches.h. */
#include "branches.h"

#if defined(__x86_64__)

#include "kit/instructions.h"

#include <emmintrin.h>
#include <string.h>

enum { JUMP = 5, VECTOR = 16 };

/* Of compilers and linkers, between functions: nop of any length, or int3. */
static bool is_filling(const uint8_t *code)
{
    while (*code == 0x66 || *code == 0x2e)
        code++;
    return *code == 0x90 || *code == 0xcc || (code[0] == 0x0f && code[1] == 0x1f);
}

/* `endbr64` stays. */
const char *branches_plan_head(const uint8_t *code, size_t own, size_t bytes, struct entry_found *entry)
{
    static const uint8_t endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
    if (bytes >= sizeof endbr64 && memcmp(code, endbr64, sizeof endbr64) == 0)
        entry->skipped = sizeof endbr64;
    bool is_over = false;
    while (entry->moved < JUMP) {
        size_t at = entry->skipped + entry->moved;
        struct instruction next = instruction_at(code + at, bytes - at, entry->start + at);
        bool is_movable = next.kind == INSTRUCTION_PLAIN || next.kind == INSTRUCTION_DATA ||
                          next.kind == INSTRUCTION_CONDITION || next.kind == INSTRUCTION_JUMP;
        if (at >= own ? !is_over || !is_filling(code + at) : next.kind == INSTRUCTION_END)
            return "is too short";
        if (at >= own && next.kind == INSTRUCTION_END)
            next.length = 1; /* int3 */
        else if (!is_movable)
            return "begins with an instruction that is not known";
        is_over |= next.kind == INSTRUCTION_JUMP;
        entry->moved += next.length;
    }
    return NULL;
}

/* Where bytes that look like a jump or a call with a 32-bit distance lead to, whether they are one or not. 0: they do not. */
static uintptr_t leads_to(const uint8_t *code, size_t room, uintptr_t address, size_t *distance_at)
{
    int32_t distance;
    if (room >= 5 && (code[0] == 0xe9 || code[0] == 0xe8))
        *distance_at = 1;
    else if (room >= 6 && code[0] == 0x0f && (code[1] & 0xf0) == 0x80)
        *distance_at = 2;
    else
        return 0;
    memcpy(&distance, code + *distance_at, sizeof distance);
    return address + *distance_at + 4 + (uintptr_t)(intptr_t)distance;
}

/* From the first instruction that is not known on, all bytes are taken for jumps that may be some. */
void branches_of_function(const uint8_t *code, size_t bytes, const struct entry_found *entry, branch_visitor *visit, void *argument)
{
    size_t at = 0;
    for (struct instruction next; at < bytes; at += next.length) {
        uintptr_t address = entry->start + at;
        next = instruction_at(code + at, bytes - at, address);
        if (next.kind == INSTRUCTION_UNKNOWN)
            break;
        /* A moved jump may be short: its copy is not. */
        bool is_moved = at < entry->skipped + entry->moved, is_short = code[at] == 0xeb || (code[at] & 0xf0) == 0x70;
        struct branch branch = {address, next.target, address + next.length - 4, !is_moved && is_short, false};
        if (next.target != 0)
            visit(argument, &branch);
    }
    for (; at < bytes; at++) {
        uintptr_t address = entry->start + at;
        size_t distance_at;
        struct branch branch = {.at = address, .target = leads_to(code + at, bytes - at, address, &distance_at), .may_be_none = true};
        if (branch.target != 0) {
            branch.distance_at = address + distance_at;
            visit(argument, &branch);
        }
        if (at + 2 <= bytes && (code[at] == 0xeb || (code[at] & 0xf0) == 0x70 || (code[at] & 0xfc) == 0xe0)) {
            branch.target = address + 2 + (uintptr_t)(intptr_t)(int8_t)code[at + 1];
            branch.is_short = true;
            visit(argument, &branch);
        }
    }
}

/* Sixteen bytes at once, with the one behind them: a bit for each that leads_to would look at. Libraries have 100 MiB of code. */
static unsigned jumps_among(const uint8_t *code)
{
    __m128i first = _mm_loadu_si128((const __m128i *)code), second = _mm_loadu_si128((const __m128i *)(code + 1));
    __m128i is_long = _mm_cmpeq_epi8(_mm_and_si128(first, _mm_set1_epi8((char)0xfe)), _mm_set1_epi8((char)0xe8));
    __m128i is_condition =
        _mm_and_si128(_mm_cmpeq_epi8(first, _mm_set1_epi8(0x0f)),
                      _mm_cmpeq_epi8(_mm_and_si128(second, _mm_set1_epi8((char)0xf0)), _mm_set1_epi8((char)0x80)));
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(is_long, is_condition));
}

void branches_in_file(const uint8_t *code, size_t bytes, size_t room, uintptr_t address, struct range range, branch_visitor *visit,
                      void *argument)
{
    for (size_t first = 0; first < bytes; first += VECTOR) {
        for (unsigned jumps = jumps_among(code + first); jumps != 0; jumps &= jumps - 1) {
            size_t i = first + (size_t)__builtin_ctz(jumps), distance_at;
            uintptr_t target = i < bytes ? leads_to(code + i, room - i, address + i, &distance_at) : 0;
            if (target >= range.start && target < range.end)
                visit(argument, &(struct branch){.at = address + i, .target = target, .may_be_none = true});
        }
    }
}

#endif
