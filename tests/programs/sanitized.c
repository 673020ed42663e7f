// Says that it runs, and ends with status 7. WITH_A_RUNTIME: it brings what clang's AddressSanitizer puts into programs.
#include <stdio.h>
#include <stdlib.h>

#ifdef WITH_A_RUNTIME
void __asan_init(void) {}
#endif

int main(void) {
    free(malloc(100));
    puts("it runs");
    return 7;
}
