// Behaviour: an allocator with operators of its own. SHAPE says how they get their blocks: OWN, past malloc; PASSED_ON, by a call
// of malloc that the loader binds; MIXED, either, by size. ALIGNED: the operators with an alignment, likewise; without it there
// are none, and libstdc++'s call aligned_alloc.
#include <cstddef>
#include <cstdlib>
#include <new>

extern "C" {
void *__libc_malloc(size_t);
void __libc_free(void *);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) { return __libc_malloc(size); }
void free(void *block) { __libc_free(block); }
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
void *memalign(size_t alignment, size_t size) { return __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { return __libc_memalign(alignment, size); }
int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = __libc_memalign(alignment, size);
    return 0;
}
}

#define OWN 0
#define PASSED_ON 1
#define MIXED 2

static bool passes_on(int shape, size_t size) { return shape == PASSED_ON || (shape == MIXED && size > 1000); }

void *operator new(size_t size) { return passes_on(SHAPE, size) ? malloc(size) : __libc_malloc(size); }
void operator delete(void *block) noexcept { passes_on(SHAPE, 5000) ? free(block) : __libc_free(block); }
void operator delete(void *block, size_t) noexcept { operator delete(block); }
#ifdef ALIGNED
void *operator new(size_t size, std::align_val_t alignment) {
    return passes_on(ALIGNED, size) ? aligned_alloc((size_t)alignment, size) : __libc_memalign((size_t)alignment, size);
}
void operator delete(void *block, std::align_val_t) noexcept { operator delete(block); }
void operator delete(void *block, size_t, std::align_val_t) noexcept { operator delete(block); }
#endif
