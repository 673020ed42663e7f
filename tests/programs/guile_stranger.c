// Has symbols of Guile, and on its stack structures with the thread in them whose virtual machine leads nowhere.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(16) uintptr_t threads[4][128];

void scm_boot_guile(void)
{
}

#ifdef HAS_ALL
void scm_values_2(void)
{
}
#endif

int main(void)
{
    uintptr_t *volatile on_stack[4];
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 128; j++)
            threads[i][j] = j % 3 == 0 ? (uintptr_t)threads[j % 4] : j % 3 == 1 ? 1 : (uintptr_t)j * 4096;
        threads[i][52] = (uintptr_t)pthread_self();
        on_stack[i] = threads[i];
    }
    size_t sum = 0;
    for (size_t i = 0; i < 2000; i++) {
        char *block = malloc(5000);
        memset(block, (int)i, 5000);
        sum += (uint8_t)block[i];
        free(block);
        on_stack[0][3] = i % 3 == 0 ? 0 : i % 3 == 1 ? (uintptr_t)threads : (uintptr_t)i * 8;
    }
    printf("%zu\n", sum);
    return 0;
}
