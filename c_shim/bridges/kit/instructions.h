/* For bridges that move code: which bytes are one instruction, and what of it depends on where it stands.
 *
 * Only instructions that are common in such functions are known; tests/embedded/entries.rs compares each with another decoder, which
 * would allocate here. Those of aarch64 are in aarch64_moves.h. */
#ifndef ALLOCSAMPLE_BRIDGES_INSTRUCTIONS_H
#define ALLOCSAMPLE_BRIDGES_INSTRUCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum instruction_kind {
    INSTRUCTION_UNKNOWN,
    INSTRUCTION_PLAIN,     /* does the same anywhere */
    INSTRUCTION_DATA,      /* has a distance to data */
    INSTRUCTION_CONDITION, /* jumps to `target` if a condition holds */
    INSTRUCTION_JUMP,      /* a jump to `target` */
    INSTRUCTION_CALL,      /* a call; of `target` if that is not 0 */
    INSTRUCTION_END,       /* returns, or jumps to an address in memory or a register */
};

struct instruction {
    enum instruction_kind kind;
    size_t length;
    size_t distance_at; /* x86-64, INSTRUCTION_DATA: where the distance is in it; it is relative to its end */
    uintptr_t target;
};

/* Decodes the instruction at `code`, and reads `room` bytes at most. `address` is where it runs. */
__attribute__((visibility("hidden"))) struct instruction instruction_at(const uint8_t *code, size_t room,
                                                                        uintptr_t address);

/* Returns how many bytes the first instructions at `code` have together, as many instructions as are needed for `least` bytes. Reads
 * `room` bytes at most. 0: one of them cannot simply be copied to another address. `distance_at` is where the copy has a distance to
 * data that must be corrected; 0: nowhere. x86-64 only. */
__attribute__((visibility("hidden"))) size_t instructions_of_start(const uint8_t *code, size_t room, size_t least,
                                                                   size_t *distance_at);

/* The longest copy that instruction_move makes. */
#define INSTRUCTION_LONGEST 16

/* Writes to `to` what the instruction does, for code that runs at `new_address`. Returns its length there, or 0: it cannot be
 * moved, or not that far. */
__attribute__((visibility("hidden"))) size_t instruction_move(const struct instruction *instruction, const uint8_t *code,
                                                              uintptr_t address, uint8_t to[INSTRUCTION_LONGEST],
                                                              uintptr_t new_address);

#endif
