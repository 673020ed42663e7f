// Says whether LD_PRELOAD is set; ends with status 3.
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    puts(getenv("LD_PRELOAD") ? "preload" : "none");
    return 3;
}
