// Behaviour: a library brings an allocator of its own, whose blocks only its own free may see.
#include "check.h"

static char arena[64 << 20];
static _Atomic(size_t) used, given, taken_back;

// In front of each block.
struct header {
    size_t size, unused;
};

int posix_memalign(void **block, size_t alignment, size_t size) {
    size_t room = size + alignment + sizeof(struct header);
    size_t start = __atomic_fetch_add(&used, (room + 15) & ~(size_t)15, __ATOMIC_RELAXED);
    if (room < size || start + room > sizeof arena) return ENOMEM;
    char *found = (char *)(((size_t)arena + start + room - size) & ~(alignment - 1));
    ((struct header *)found)[-1].size = size;
    given++;
    *block = found;
    return 0;
}

void *memalign(size_t alignment, size_t size) {
    void *block = NULL;
    return posix_memalign(&block, alignment, size) == 0 ? block : NULL;
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

void *malloc(size_t size) { return memalign(16, size); }

// Nothing is used twice, so all is zero.
void *calloc(size_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : malloc(bytes);
}

void free(void *block) {
    if (block == NULL) return;
    CHECK((char *)block >= arena && (char *)block < arena + sizeof arena);
    taken_back++;
}

void *realloc(void *block, size_t size) {
    void *moved = malloc(size);
    if (block == NULL || moved == NULL) return moved;
    CHECK((char *)block >= arena && (char *)block < arena + sizeof arena);
    size_t old = ((struct header *)block)[-1].size;
    memcpy(moved, block, old < size ? old : size);
    free(block);
    return moved;
}

size_t deep_allocator_given(void) { return given; }
size_t deep_allocator_taken_back(void) { return taken_back; }
