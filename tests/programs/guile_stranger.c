// Has symbols of Guile, and on its stack structures with the thread in them whose virtual machine leads nowhere.
#include <pthread.h>

#include "stranger.h"

static _Alignas(16) uintptr_t threads[4][128];

void scm_boot_guile(void)
{
}

#ifdef HAS_ALL
void scm_values_2(void)
{
}
#endif

static void change(size_t round)
{
    threads[0][3] = a_link(round, threads);
}

int main(void)
{
    uintptr_t *volatile on_stack[4];
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 128; j++)
            threads[i][j] = j % 3 == 0 ? (uintptr_t)threads[j % 4] : j % 3 == 1 ? 1 : (uintptr_t)j * 4096;
        threads[i][52] = (uintptr_t)pthread_self();
        on_stack[i] = threads[i];
    }
    int status = allocate();
    // They stay on the stack until here.
    return on_stack[0] == NULL ? 1 : status;
}
