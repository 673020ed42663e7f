// Has the symbols of a Tcl of version 8.MINOR, and interpreters on its stack that lead nowhere behind their tables of stubs. PLAUSIBLE: they
// look like those of 8.6, and only their call frames lead nowhere.
#include "stranger.h"

static int stubs[16] = {(int)0xFCA3BACF};
static _Alignas(16) uintptr_t interpreters[4][256];

void Tcl_GetVersion(int *major, int *minor, int *patch_level, int *type)
{
    *major = 8;
    *minor = MINOR;
    *patch_level = *type = 0;
}

void Tcl_CreateInterp(void)
{
}

#ifdef PLAUSIBLE
static uintptr_t global[32], root[16], frame[16];

static void change(size_t round)
{
    (void)round;
}

static void make_plausible(uintptr_t *interpreter)
{
    global[17] = (uintptr_t)interpreter;
    root[0] = (uintptr_t)global;
    frame[1] = 1; // a procedure's
    frame[6] = (uintptr_t)frame;
    interpreter[5] = (uintptr_t)global;
    interpreter[19] = 1;
    interpreter[20] = (uintptr_t)frame;
    interpreter[24] = (uintptr_t)root;
    interpreter[57] = (uintptr_t)frame;
    interpreter[86] = (uintptr_t)__builtin_thread_pointer();
}
#else
static void change(size_t round)
{
    interpreters[0][5] = a_link(round, interpreters);
}

static void make_plausible(uintptr_t *interpreter)
{
    (void)interpreter;
}
#endif

int main(void)
{
    uintptr_t *volatile on_stack[4];
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 256; j++)
            interpreters[i][j] = j % 3 == 0 ? (uintptr_t)interpreters[j % 4] : j % 3 == 1 ? 1 : (uintptr_t)j * 4096;
        interpreters[i][3] = (uintptr_t)stubs;
        if (i == 0)
            make_plausible(interpreters[i]);
        on_stack[i] = interpreters[i];
    }
    int status = allocate();
    // They stay on the stack until here.
    return on_stack[0] == NULL ? 1 : status;
}
