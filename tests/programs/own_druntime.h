// A collector with the functions of druntime since 2.111, as a library of its own, in which each call passes through a slot.
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define BYTES (256 << 20)
#define MOST 100000

struct block {
    char *start;
    size_t bytes;
    bool is_kept;
};
struct block_info {
    void *base;
    size_t size;
    uint32_t attributes;
};
struct collections {
    size_t count;
    int64_t times[4];
};
struct delegate {
    void *context;
    int (*function)(void *context, void *address);
};

static char *memory, *next;
static struct block blocks[MOST];
static size_t count, collections;

static struct block *block_of(const void *address)
{
    for (size_t i = 0; i < count; i++)
        if ((const char *)address >= blocks[i].start && (const char *)address < blocks[i].start + blocks[i].bytes)
            return &blocks[i];
    return NULL;
}

void *gc_malloc(size_t size, uint32_t attributes, const void *type)
{
    (void)attributes;
    (void)type;
    if (memory == NULL)
        memory = next = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (count == MOST || next + size > memory + BYTES)
        return NULL;
    // As D's, blocks of a page and more are whole pages.
    if (size >= 4096)
        next += -(uintptr_t)next % 4096;
    blocks[count++] = (struct block){next, size, false};
    next += (size + 15) / 16 * 16;
    return blocks[count - 1].start;
}

void gc_keep(const void *block)
{
    block_of(block)->is_kept = true;
}

size_t gc_sizeOf(const void *block)
{
    struct block *found = block_of(block);
    return found == NULL ? 0 : found->bytes;
}

struct block_info gc_query(const void *address)
{
    struct block *found = block_of(address);
    return found == NULL ? (struct block_info){0} : (struct block_info){found->start, found->bytes, 0};
}

bool gc_inFinalizer(void)
{
    return false;
}

struct collections gc_profileStats(void)
{
    return (struct collections){.count = collections};
}

struct slice {
    size_t length;
    void *start;
};

// The last block grows by pages.
bool gc_expandArrayUsed(struct slice array, size_t used, bool is_shared)
{
    (void)is_shared;
    struct block *block = block_of(array.start);
    if (block != &blocks[count - 1])
        return false;
    size_t bytes = ((char *)array.start + used - block->start + 4095) / 4096 * 4096;
    if (bytes > block->bytes) {
        next += bytes - block->bytes;
        block->bytes = bytes;
    }
    return true;
}
size_t gc_reserveArrayCapacity(struct slice array, size_t wanted, bool is_shared)
{
    return gc_expandArrayUsed(array, wanted, is_shared) ? wanted : 0;
}

// Programs call none of these here.
struct block_info gc_qalloc(size_t size, uint32_t attributes, const void *type)
{
    return (struct block_info){gc_malloc(size, attributes, type), size, attributes};
}
void *gc_calloc(size_t size, uint32_t attributes, const void *type)
{
    return gc_malloc(size, attributes, type);
}
void *gc_realloc(void *block, size_t size, uint32_t attributes, const void *type)
{
    (void)block;
    return gc_malloc(size, attributes, type);
}
size_t gc_extend(void *block, size_t least, size_t most, const void *type)
{
    (void)block;
    (void)type;
    return least > most;
}
void gc_free(void *block)
{
    (void)block;
}
void gc_term(void)
{
}
__attribute__((destructor)) static void end(void)
{
    gc_term();
}
void thread_suspendAll(void)
{
}
// The report knows a druntime by it.
void thread_scanAllType(void)
{
}

static int is_marked(void *context, void *address)
{
    bool is_ours = (char *)address >= memory && (char *)address < memory + BYTES;
#ifdef OTHER_ANSWERS
    return context == &collections && is_ours && block_of(address)->is_kept;
#else
    return context != &collections ? -1 : !is_ours ? 2 : block_of(address)->is_kept;
#endif
}

#ifdef IN_AN_OTHER_MODULE
#define MARKS "_D4core2gc5marks14processGCMarksFNbNiPvMDFNbQhZiZv"
#else
#define MARKS "_D4core8internal2gc8blkcache14processGCMarksFNbPvMDFNbQhZEQCeQCcQBwQBw8IsMarkedZv"
#endif

#ifdef DELEGATE_FIRST
void process_marks(struct delegate is_marked, void *data) __asm__(MARKS);
void process_marks(struct delegate is_marked, void *data)
#else
void process_marks(void *data, struct delegate is_marked) __asm__(MARKS);
void process_marks(void *data, struct delegate is_marked)
#endif
{
    if (data != NULL && is_marked.function(is_marked.context, data) == 0)
        *(char **)data = NULL;
}

#ifdef DIRECT_CALLS
static void same(void *data, struct delegate is_marked) __attribute__((alias(MARKS), used));
#define CALL same
#else
#define CALL process_marks
#endif

void gc_collect(void)
{
    struct delegate delegate = {&collections, is_marked};
    thread_suspendAll();
    // Once for each of two threads.
    for (int thread = 0; thread < 2; thread++) {
#if defined(DELEGATE_FIRST)
        CALL(delegate, NULL);
#elif defined(UNSEEN)
        if (collections == MOST)
            CALL(NULL, delegate);
#else
        CALL(NULL, delegate);
#endif
    }
    collections++;
}
