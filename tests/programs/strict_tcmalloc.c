// Behaviour: part of a program. An allocator with the functions of Google's tcmalloc, which ends the program if a block is freed with
// another size or alignment than it was asked for, or twice.
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HEADER = 64, PAGE = 4096, CLASSES = 40, PIECE = 1 << 22 };
#define LIVE 0x6c697665u

// Before each block.
struct header {
    size_t size, alignment; // as asked for; 0: no alignment was
    unsigned class, state;
    bool is_by_pages;
    struct header *next;
};

static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct header *unused[CLASSES];
static char *piece, *piece_end;
static size_t bytes_in_use, bytes_mapped;

static void take_lock(void) {
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) ;
}
static void leave_lock(void) { atomic_flag_clear_explicit(&lock, memory_order_release); }

static char *map(size_t bytes) {
    char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) abort();
    bytes_mapped += bytes;
    return mapped;
}

// Room of a power of two, aligned to a header.
static char *cut(size_t bytes) {
    if (bytes > PIECE) return map(bytes);
    if ((size_t)(piece_end - piece) < bytes) {
        piece = map(PIECE);
        piece_end = piece + PIECE;
    }
    piece += bytes;
    return piece - bytes;
}

// Alignments up to that of a header need no more room. Others get pages, which are never used again.
static void *make(size_t size, size_t alignment, bool is_by_pages) {
    bool is_wide = alignment > HEADER || is_by_pages;
    unsigned class = 7;
    while ((size_t)1 << class < size + HEADER) class++;
    take_lock();
    struct header *header = is_wide ? NULL : unused[class];
    if (header != NULL)
        unused[class] = header->next;
    else if (is_wide)
        header = (struct header *)(map(PAGE + ((size + PAGE - 1) & -(size_t)PAGE)) + PAGE - HEADER);
    else
        header = (struct header *)cut((size_t)1 << class);
    bytes_in_use += size;
    leave_lock();
    *header = (struct header){size, alignment, is_wide ? CLASSES : class, LIVE, is_by_pages, NULL};
    return (char *)header + HEADER;
}

static struct header *header_of(void *block) {
    struct header *header = (struct header *)((char *)block - HEADER);
    if (header->state != LIVE) abort();
    return header;
}

static void end(void *block) {
    if (block == NULL) return;
    struct header *header = header_of(block);
    take_lock();
    header->state = 0;
    bytes_in_use -= header->size;
    if (header->class < CLASSES) {
        header->next = unused[header->class];
        unused[header->class] = header;
    }
    leave_lock();
}

static void check(void *block, size_t size, size_t alignment) {
    const struct header *header = block != NULL ? header_of(block) : NULL;
    if (header != NULL && (header->size != size || header->alignment != alignment || header->is_by_pages)) abort();
}

void *TCMallocInternalMalloc(size_t size) { return make(size, 0, false); }
void *TCMallocInternalNew(size_t size) { return make(size, 0, false); }
void *TCMallocInternalNewNothrow(size_t size, const void *nothrow) {
    (void)nothrow;
    return make(size, 0, false);
}
void *_Znwm12__hot_cold_t(size_t size, uint8_t hint) {
    (void)hint;
    return make(size, 0, false);
}
void *TCMallocInternalNewAligned(size_t size, size_t alignment) { return make(size, alignment, false); }
void *TCMallocInternalMemalign(size_t alignment, size_t size) { return make(size, alignment, false); }
void *TCMallocInternalValloc(size_t size) { return make(size, PAGE, true); }
void *TCMallocInternalPvalloc(size_t size) { return make((size + PAGE - 1) & -(size_t)PAGE, PAGE, true); }
int TCMallocInternalPosixMemalign(void **block, size_t alignment, size_t size) {
    *block = make(size, alignment, false);
    return 0;
}
void *TCMallocInternalCalloc(size_t count, size_t size) {
    void *block = TCMallocInternalMalloc(count * size);
    return memset(block, 0, count * size);
}
void *TCMallocInternalRealloc(void *block, size_t size) {
    void *other = make(size, 0, false);
    if (block != NULL) {
        size_t old = header_of(block)->size;
        memcpy(other, block, old < size ? old : size);
    }
    end(block);
    return other;
}
void *TCMallocInternalReallocArray(void *block, size_t count, size_t size) {
    return TCMallocInternalRealloc(block, count * size);
}
void TCMallocInternalFree(void *block) { end(block); }
void TCMallocInternalDelete(void *block) { end(block); }
void TCMallocInternalFreeSized(void *block, size_t size) {
    check(block, size, 0);
    end(block);
}
void TCMallocInternalSdallocx(void *block, size_t size, int flags) {
    if (flags != 0) abort();
    check(block, size, 0);
    end(block);
}
void TCMallocInternalDeleteSized(void *block, size_t size) {
    check(block, size, 0);
    end(block);
}
void TCMallocInternalDeleteAligned(void *block, size_t alignment) {
    if (block != NULL) check(block, header_of(block)->size, alignment);
    end(block);
}
void TCMallocInternalDeleteSizedAligned(void *block, size_t size, size_t alignment) {
    check(block, size, alignment);
    end(block);
}
void TCMallocInternalFreeAlignedSized(void *block, size_t alignment, size_t size) {
    check(block, size, alignment);
    end(block);
}

bool MallocExtension_Internal_GetNumericProperty(const char *name, size_t length, size_t *value) {
    static const char *const known[] = {"generic.current_allocated_bytes", "generic.heap_size", "generic.physical_memory_used",
                                        "tcmalloc.pageheap_free_bytes", "tcmalloc.pageheap_unmapped_bytes"};
    take_lock();
    const size_t values[] = {bytes_in_use, bytes_mapped, bytes_mapped, 0, 0};
    leave_lock();
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i]) == length && memcmp(known[i], name, length) == 0) {
            *value = values[i];
            return true;
        }
    return false;
}
