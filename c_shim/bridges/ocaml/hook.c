/* Notices that the program starts the runtime's sampler itself, which there is only one of: the program goes first.
 *
 * `caml_memprof_start` gets a jump in place of its first instructions. The jump is one instruction, so that no thread stands
 * between the old code and the new one when it is put there or taken away. */
#define _GNU_SOURCE
#include "ocaml.h"
#include "kit/code.h"
#include "kit/symbols.h"

#include <string.h>

#if defined(__x86_64__)

enum { JUMP = 5 };

static uint8_t original[JUMP];
static struct {
    void *jump;
    ocaml_start_function *to;
} hook;

static void *code_of(ocaml_start_function *function)
{
    void *code;
    memcpy(&code, &function, sizeof code);
    return code;
}

/* The far part of the jump, near OCaml's code. */
static bool make_room(ocaml_start_function *instead)
{
    struct code_room room;
    uintptr_t start, end;
    void (*function)(void);
    memcpy(&function, &instead, sizeof function);
    if (!symbols_code_of(code_of(ocaml.start), &start, &end) || !code_room_open(&room, start))
        return false;
    hook.jump = code_room_jump(&room, function);
    return code_room_close(&room);
}

bool ocaml_hook_start(ocaml_start_function *instead)
{
    void *at = code_of(ocaml.start);
    if (hook.to == NULL) {
        memcpy(original, at, sizeof original);
        if (!make_room(instead))
            return false;
        hook.to = instead;
    }
    return code_put_jump(at, hook.jump);
}

bool ocaml_unhook_start(void)
{
    return code_put(code_of(ocaml.start), original, sizeof original);
}

#endif
