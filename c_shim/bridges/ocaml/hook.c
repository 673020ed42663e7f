/* Notices that the program starts the runtime's sampler itself, which there is only one of: the program goes first.
 *
 * `caml_memprof_start` gets a jump in place of its first instructions. The jump is one instruction, so that no thread stands
 * between the old code and the new one when it is put there or taken away. */
#define _GNU_SOURCE
#include "ocaml.h"
#include "kit/code.h"
#include "kit/symbols.h"

#include <string.h>

static uint8_t replaced[CODE_JUMP_BYTES];
static struct {
    void *jump;                     /* the far part, near OCaml's code; NULL: not made */
    ocaml_start_function *original; /* does what the function did without the jump */
} hook;

static void *code_of(ocaml_start_function *function)
{
    void *code;
    memcpy(&code, &function, sizeof code);
    return code;
}

/* For two jumps and what one of them replaces. */
enum { ROOM = 64 };

static bool make_room(ocaml_start_function *instead)
{
    struct code_room room;
    uintptr_t start, end;
    void (*function)(void);
    const uint8_t *at = code_of(ocaml.start);
    memcpy(&function, &instead, sizeof function);
    if (!symbols_code_of(at, &start, &end) || !code_room_open(&room, start, ROOM))
        return false;
    void *jump = code_room_jump(&room, function);
    size_t distance_at, length = code_beginning(at, (size_t)(end - (uintptr_t)at), &distance_at);
    void *original = length == 0 ? NULL : code_room_original(&room, at, length, distance_at);
    if (!code_room_close(&room))
        return false;
    hook.jump = jump;
    memcpy(&hook.original, &original, sizeof original);
    return true;
}

bool ocaml_hook_start(ocaml_start_function *instead)
{
    void *at = code_of(ocaml.start);
    memcpy(replaced, at, sizeof replaced);
    return (hook.jump != NULL || make_room(instead)) && code_put_jump(at, hook.jump);
}

bool ocaml_unhook_start(void)
{
    return code_put(code_of(ocaml.start), replaced, sizeof replaced);
}

ocaml_start_function *ocaml_original_start(void)
{
    return hook.original;
}
