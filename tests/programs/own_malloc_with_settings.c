// Behaviour: a program that brings its own malloc, which reads a setting when it is first called, prints whether it found it.
#define malloc bump_malloc
#include "bump_allocator.c"
#undef malloc

static int state;

void *malloc(size_t size) {
    if (state == 0) state = getenv("TOY_SETTING") != NULL ? 1 : 2;
    return bump_malloc(size);
}

int main(void) {
    char *volatile block = malloc(1);
    free(block);
    puts(state == 1 ? "read" : "not read");
    return 0;
}
