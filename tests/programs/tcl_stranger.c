// Has the symbols of a Tcl of version 8.MINOR, and interpreters on its stack that lead nowhere behind their tables of stubs.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int main(void)
{
    uintptr_t *volatile on_stack[4];
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 256; j++)
            interpreters[i][j] = j % 3 == 0 ? (uintptr_t)interpreters[j % 4] : j % 3 == 1 ? 1 : (uintptr_t)j * 4096;
        interpreters[i][3] = (uintptr_t)stubs;
        on_stack[i] = interpreters[i];
    }
    size_t sum = 0;
    for (size_t i = 0; i < 2000; i++) {
        char *block = malloc(5000);
        memset(block, (int)i, 5000);
        sum += (uint8_t)block[i];
        free(block);
        on_stack[0][5] = i % 3 == 0 ? 0 : i % 3 == 1 ? (uintptr_t)interpreters : (uintptr_t)i * 8;
    }
    printf("%zu\n", sum);
    return 0;
}
