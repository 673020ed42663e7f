// Behaviour: a program that brings its own malloc; the dynamic linker prefers it to everybody's.
#include "bump_allocator.c"

int main(void) {
    for (int turn = 0; turn < 1000; turn++) {
        char *block = malloc(1000);
        paint(block, 1000, 1);
        CHECK(is_painted(block, 1000, 1) && malloc_usable_size(block) == 1000);
        free(block);
    }
    char *text = strdup("copied by the C library, which calls the program's malloc");
    CHECK(malloc_usable_size(text) == strlen(text) + 1);
    puts(text);
    return 0;
}
