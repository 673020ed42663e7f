// Has the symbols of a perl, whose version the first argument of the compiler names, and nothing of it behind them.
#define _GNU_SOURCE
#include <pthread.h>

#include "stranger.h"

const uint8_t PL_revision = 5, PL_version = MINOR, PL_subversion = 0;
const uint16_t PL_interp_size = 3768;
pthread_key_t PL_thr_key;
void *PL_curinterp;
void *PL_ppaddr[512];

// On the stack of the main function.
static uintptr_t *interpreter;

void perl_construct(void *interpreter)
{
    (void)interpreter;
}

static void change(size_t round)
{
    interpreter[round % 80] = (uintptr_t)rand() * 8;
}

int main(void)
{
    // All that could be a jump buffer lies on the stack, and all other words lead into the interpreter itself.
    uintptr_t own[471], buffer = 1;
    interpreter = own;
    for (size_t i = 0; i < 471; i++)
        interpreter[i] = (uintptr_t)(i * sizeof(uintptr_t) < 700 ? interpreter + i * 7 % 471 : &buffer);
    pthread_key_create(&PL_thr_key, NULL);
    pthread_setspecific(PL_thr_key, interpreter);
    PL_curinterp = interpreter;
    return allocate();
}
