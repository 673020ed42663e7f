// Behaviour: plugin.c with addresses of the allocator among its code, to which only the loader has written (-z notext).
#include "plugin.c"

// The second one lies across two words, and the third one across two pages.
__asm__(".pushsection .text.pointers_in_code, \"ax\"\n"
        ".balign 4096\n"
        ".quad malloc\n"
        ".byte 0\n"
        ".quad free\n"
        ".skip 4096 - 8 - 1 - 8 - 4\n"
        ".quad realloc\n"
        ".popsection\n");
