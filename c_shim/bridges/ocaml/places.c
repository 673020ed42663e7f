/* Finds variables of OCaml's runtime that have no symbol, by the first instructions of functions that read them. */
#define _GNU_SOURCE
#include "kit/symbols.h"
#include "ocaml.h"

#include <string.h>

/* The interrupt is a word in the first pages of a domain's state. */
static size_t interrupt_or_none(uint64_t offset)
{
    return offset > 0 && offset < 4096 && offset % 8 == 0 ? (size_t)offset : 0;
}

#if defined(__x86_64__)

/* What `caml_memprof_stop` reads first, as compilers have it do, by
 *     mov place(%rip), %r32      or      cmpl $0, place(%rip). */
int *ocaml_4_started_place(void)
{
    enum { REACH = 32 };
    const uint8_t *code;
    memcpy(&code, &ocaml.stop, sizeof code);
    for (const uint8_t *at = code; at < code + REACH; at++) {
        int32_t distance;
        memcpy(&distance, at + 2, sizeof distance);
        const uint8_t *next = NULL;
        if (at[0] == 0x8b && (at[1] & 0xc7) == 0x05)
            next = at + 6;
        else if (at[0] == 0x83 && at[1] == 0x3d && at[6] == 0)
            next = at + 7;
        if (next != NULL)
            return symbols_is_data(next + distance, sizeof(int)) ? (int *)(uintptr_t)(next + distance) : NULL;
    }
    return NULL;
}

/* caml_process_external_interrupt calls the hook. It begins, after an endbr64 or not, with
 *     mov %fs:STATE, %rax; mov INTERRUPT(%rax), %rax
 * and STATE is known: so what it looks at is INTERRUPT bytes into the state. */
size_t ocaml_5_interrupt_offset(ptrdiff_t state_offset)
{
    static const uint8_t landing[] = {0xf3, 0x0f, 0x1e, 0xfa}, load_state[] = {0x64, 0x48, 0x8b, 0x04, 0x25},
                         load_interrupt[] = {0x48, 0x8b, 0x80};
    int32_t state, interrupt;
    const uint8_t *at = ocaml.interrupt;
    if (memcmp(at, landing, sizeof landing) == 0)
        at += sizeof landing;
    if (memcmp(at, load_state, sizeof load_state) != 0)
        return 0;
    memcpy(&state, at + sizeof load_state, sizeof state);
    at += sizeof load_state + sizeof state;
    if (state != state_offset || memcmp(at, load_interrupt, sizeof load_interrupt) != 0)
        return 0;
    memcpy(&interrupt, at + sizeof load_interrupt, sizeof interrupt);
    return interrupt < 0 ? 0 : interrupt_or_none((uint64_t)interrupt);
}

#else

#include "kit/aarch64.h"

int *ocaml_4_started_place(void)
{
    const void *stop;
    memcpy(&stop, &ocaml.stop, sizeof stop);
    return aarch64_first_int(stop, symbols_is_data);
}

/* `caml_process_external_interrupt` asks first whether it is to call the hook. */
size_t ocaml_5_interrupt_offset(ptrdiff_t state_offset)
{
    return interrupt_or_none(aarch64_first_field(ocaml.interrupt, (uint64_t)state_offset, symbols_is_data));
}

#endif
