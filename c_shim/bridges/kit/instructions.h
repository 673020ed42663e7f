/* For bridges that move code: which bytes are one instruction, and what of it depends on where it stands.
 *
 * Only instructions that are common in such functions are known; tests/entries.rs compares each with another decoder, which
 * would allocate here. x86-64 only. */
#ifndef ALLOCSAMPLE_BRIDGES_INSTRUCTIONS_H
#define ALLOCSAMPLE_BRIDGES_INSTRUCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum instruction_kind {
    INSTRUCTION_UNKNOWN,
    INSTRUCTION_PLAIN,     /* does the same anywhere */
    INSTRUCTION_DATA,      /* has a 32-bit distance to data */
    INSTRUCTION_CONDITION, /* a conditional jump to `target`; goes on behind it otherwise */
    INSTRUCTION_JUMP,      /* a jump to `target` */
    INSTRUCTION_CALL,      /* a call; of `target` if that is not 0 */
    INSTRUCTION_END,       /* returns, or jumps to an address in memory or a register */
};

struct instruction {
    enum instruction_kind kind;
    size_t length;
    size_t distance_at; /* INSTRUCTION_DATA: where the distance is in it; it is relative to its end */
    uintptr_t target;
};

/* The instruction that begins at `code`, of which `room` bytes can be read; it stands at `address` when it runs. */
__attribute__((visibility("hidden"))) struct instruction instruction_at(const uint8_t *code, size_t room,
                                                                        uintptr_t address);

/* The bytes of the whole instructions that `code` begins with, of which it reads `room` bytes at most: `least`, or a few more. 0: one
 * of them does something else elsewhere. `distance_at` is where a distance to data is in them; 0: none has one. */
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
