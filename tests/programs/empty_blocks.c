// Behaviour: half of the blocks have no bytes.
#include <stdlib.h>

int main(void)
{
    for (int i = 0; i < 200000; i++) {
        free(malloc(0));
        free(malloc(10));
    }
    return 0;
}
