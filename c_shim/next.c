/* Finds the next allocator: whoever defines malloc after us in symbol order.
 *
 * dlsym may itself allocate; what it asks for meanwhile comes from a small arena that is never freed. The arena is
 * marked for ever in the block filter, so that free and realloc meet it on their slow halves only. */
#define _GNU_SOURCE
#include "attach.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_BYTES (256 * 1024)
static _Alignas(4096) char arena[ARENA_BYTES];
static _Atomic(size_t) arena_used;

bool shim_is_bootstrap_block(const void *block)
{
    return (uintptr_t)block - (uintptr_t)arena < ARENA_BYTES;
}

/* Zeroed memory, since every byte of the arena is given out once. */
static void *arena_alloc(size_t alignment, size_t size)
{
    if (size > ARENA_BYTES || alignment > 4096)
        goto full;
    size_t used = atomic_load_explicit(&arena_used, memory_order_relaxed);
    size_t start;
    do {
        start = (used + alignment - 1) & ~(alignment - 1);
        if (start + size > ARENA_BYTES)
            goto full;
    } while (!atomic_compare_exchange_weak_explicit(&arena_used, &used, start + size, memory_order_relaxed,
                                                    memory_order_relaxed));
    if (used == 0) {
        shim_watch_frees();
        const size_t less_than_a_granule = 64;
        for (size_t at = 0; at < ARENA_BYTES; at += less_than_a_granule) {
            atomic_store_explicit(&shim_block_filter[shim_filter_granule(arena + at)], 255, memory_order_relaxed);
        }
    }
    return arena + start;
full:
    errno = ENOMEM;
    return NULL;
}

/* ---- compositions, for an allocator that lacks a function: libc's own would mix two heaps ---- */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *memalign_by_posix_memalign(size_t alignment, size_t size)
{
    void *block = NULL;
    int error = shim_next.posix_memalign(&block, alignment < sizeof(void *) ? sizeof(void *) : alignment, size);
    if (error == 0)
        return block;
    errno = error;
    return NULL;
}

static void *valloc_by_memalign(size_t size)
{
    return shim_next.memalign(page_size(), size);
}

static void *pvalloc_by_memalign(size_t size)
{
    size_t page = page_size();
    size_t rounded;
    if (__builtin_add_overflow(size, page - 1, &rounded)) {
        errno = ENOMEM;
        return NULL;
    }
    return shim_next.memalign(page, rounded & ~(page - 1));
}

/* By name: where an allocator in front of us lacks these functions, the block came from its malloc. */
static void free_sized_by_free(void *block, size_t size)
{
    (void)size;
    free(block);
}

static void free_aligned_sized_by_free(void *block, size_t alignment, size_t size)
{
    (void)alignment;
    (void)size;
    free(block);
}

/* ---- compositions for musl, whose functions call one another by name: each block would count once for every call ---- */

/* As musl's calloc clears what a foreign malloc gave it: pages that read as zeros are not written, so that fresh ones stay unused. */
static void clear(char *block, size_t bytes)
{
    const size_t chunk = 4096;
    for (size_t at = 0; at < bytes; at += chunk) {
        size_t length = bytes - at < chunk ? bytes - at : chunk;
        if (bytes < chunk || block[at] != 0 || memcmp(block + at, block + at + 1, length - 1) != 0)
            memset(block + at, 0, length);
    }
}

static void *calloc_by_malloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    char *block = shim_next.malloc(bytes);
    if (block != NULL)
        clear(block, bytes);
    return block;
}

static int posix_memalign_by_aligned_alloc(void **block, size_t alignment, size_t size)
{
    if (alignment < sizeof(void *))
        return EINVAL;
    void *found = shim_next.aligned_alloc(alignment, size);
    if (found == NULL)
        return errno;
    *block = found;
    return 0;
}

static void *memalign_by_aligned_alloc(size_t alignment, size_t size)
{
    return shim_next.aligned_alloc(alignment, size);
}

/* ---- first calls ---- */

/* Nesting depth of shim_find_next on this thread. */
static _Thread_local int finding __attribute__((tls_model("initial-exec")));

static void *malloc_first(size_t size)
{
    if (finding)
        return arena_alloc(16, size);
    shim_find_next();
    return shim_next.malloc(size);
}

static void free_first(void *block)
{
    if (finding || block == NULL)
        return;
    shim_find_next();
    shim_next.free(block);
}

static void *calloc_first(size_t count, size_t size)
{
    size_t bytes;
    if (finding)
        return __builtin_mul_overflow(count, size, &bytes) ? NULL : arena_alloc(16, bytes);
    shim_find_next();
    return shim_next.calloc(count, size);
}

static void *realloc_first(void *block, size_t size)
{
    if (finding) {
        void *copy = arena_alloc(16, size);
        if (copy != NULL && block != NULL)
            for (size_t i = 0; i < size && shim_is_bootstrap_block((char *)block + i); i++)
                ((char *)copy)[i] = ((char *)block)[i];
        return copy;
    }
    shim_find_next();
    return shim_next.realloc(block, size);
}

static int posix_memalign_first(void **block, size_t alignment, size_t size)
{
    if (finding)
        return (*block = arena_alloc(alignment, size)) == NULL ? ENOMEM : 0;
    shim_find_next();
    return shim_next.posix_memalign(block, alignment, size);
}

static void *aligned_alloc_first(size_t alignment, size_t size)
{
    if (finding)
        return arena_alloc(alignment, size);
    shim_find_next();
    return shim_next.aligned_alloc(alignment, size);
}

static void *memalign_first(size_t alignment, size_t size)
{
    if (finding)
        return arena_alloc(alignment, size);
    shim_find_next();
    return shim_next.memalign(alignment, size);
}

static void *valloc_first(size_t size)
{
    if (finding)
        return arena_alloc(4096, size);
    shim_find_next();
    return shim_next.valloc(size);
}

static void *pvalloc_first(size_t size)
{
    if (finding)
        return arena_alloc(4096, size);
    shim_find_next();
    return shim_next.pvalloc(size);
}

static void free_sized_first(void *block, size_t size)
{
    if (finding)
        return;
    shim_find_next();
    shim_next.free_sized(block, size);
}

static void free_aligned_sized_first(void *block, size_t alignment, size_t size)
{
    if (finding)
        return;
    shim_find_next();
    shim_next.free_aligned_sized(block, alignment, size);
}

struct shim_next shim_next = {
#define MALLOC(NAME) .NAME = NAME##_first,
#define COMPOSED(NAME, COMPOSITION) MALLOC(NAME)
#include "interposed.def"
};

/* ---- the search ---- */

void *shim_find_symbol(const char *name)
{
    /* An object that was opened late comes after all others, or is in no order with them. */
    return shim_is_late() ? shim_late_symbol(name) : dlsym(RTLD_NEXT, name);
}

struct shim_function shim_functions[SHIM_ROWS] = {
#define INTERPOSED(GROUP, NAME) {.name = #NAME, .group = SHIM_##GROUP},
#include "interposed.def"
};

static void find_functions(enum shim_group group)
{
    for (struct shim_function *function = shim_functions; function < shim_functions + SHIM_ROWS; function++) {
        if (function->group == group)
            shim_next_function(function);
    }
}

void shim_find_functions(void)
{
    find_functions(SHIM_PROCESS);
    find_functions(SHIM_START);
    shim_forget_failed_lookups();
}

void shim_forget_failed_lookups(void)
{
    /* The second call frees the text. */
    dlerror();
    dlerror();
}

struct search {
    uintptr_t address;
    struct shim_object *found;
};

static int look_into_object(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)size;
    struct search *search = argument;
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && search->address - (object->dlpi_addr + segment->p_vaddr) < segment->p_memsz) {
            *search->found = (struct shim_object){.headers = object->dlpi_phdr, .path = object->dlpi_name};
            return 1;
        }
    }
    return 0;
}

/* Not dladdr: it looks for the nearest symbol too, among all that the object has, and libc has 3,000. */
bool shim_find_object(const void *address, struct shim_object *found)
{
    struct search search = {.address = (uintptr_t)address, .found = found};
    return dl_iterate_phdr(look_into_object, &search) != 0;
}

bool shim_same_object(const void *a, const void *b)
{
    struct shim_object in_a, in_b;
    return shim_find_object(a, &in_a) && shim_find_object(b, &in_b) && in_a.headers == in_b.headers;
}

/* Only musl has this one, and only glibc the others. */
extern struct r_debug *const _dl_debug_addr __attribute__((weak));
#pragma weak dladdr1
#pragma weak _r_debug

bool shim_is_glibc(void)
{
    return &_dl_debug_addr == NULL;
}

const struct r_debug *shim_list_of_loader(void)
{
    return &_dl_debug_addr != NULL ? _dl_debug_addr : &_r_debug;
}

bool shim_is_definition(const void *address)
{
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (dladdr1 == NULL)
        return true;
    return dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) != 0 && symbol != NULL &&
           symbol->st_shndx != SHN_UNDEF;
}

static void say_and_die(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
    _exit(127);
}

/* The function `name` of the allocator that defines `malloc`, or `composed`. Converts between object and function
 * pointers through memory, which is what POSIX promises for dlsym. */
static void find(void *slot, const char *name, const void *malloc_address, const void *composed)
{
    void *found = shim_find_symbol(name);
    if (found == NULL || !shim_same_object(found, malloc_address))
        memcpy(&found, &composed, sizeof found);
    memcpy(slot, &found, sizeof found);
}

/* Whether this malloc is that of musl. */
static bool is_of_musl(const void *malloc_address)
{
    return !shim_is_glibc() && shim_same_object(malloc_address, _dl_debug_addr);
}

#define FIND(NAME, COMPOSED) find(&found.NAME, #NAME, malloc_address, (const void *)(COMPOSED))
/* Another thread that calls meanwhile sees either the finder or the found. */
#define PUBLISH(NAME) __atomic_store_n(&shim_next.NAME, found.NAME, __ATOMIC_RELEASE)

void shim_find_next(void)
{
    finding++;
    /* Before anything can be missing: dlsym frees the text of its last failure while it still refers to it. A malloc of the program's
     * own that calls madvise or mprotect for the first time in that free, under a lock of its own, would come to dlsym and to the
     * same free again. */
    find_functions(SHIM_MAPPING);
    struct shim_next found;
    void *malloc_address = shim_find_symbol("malloc");
    if (malloc_address == NULL)
        say_and_die("allocsample: no allocator comes after this one: is the program static?\n");
#define MALLOC(NAME) FIND(NAME, NULL);
#include "interposed.def"
    if (found.free == NULL || found.calloc == NULL || found.realloc == NULL || found.posix_memalign == NULL)
        say_and_die("allocsample: the next allocator lacks free, calloc, realloc or posix_memalign\n");
    /* Published before we look for what may be missing: dlsym allocates to say that it is missing, and a block of the arena has
     * every free watched from then on. */
#define MALLOC(NAME) PUBLISH(NAME);
#include "interposed.def"
#define COMPOSED(NAME, COMPOSITION) FIND(NAME, COMPOSITION);
#include "interposed.def"
    if (is_of_musl(malloc_address)) {
        found.calloc = calloc_by_malloc;
        found.posix_memalign = posix_memalign_by_aligned_alloc;
        found.memalign = memalign_by_aligned_alloc;
        found.valloc = valloc_by_memalign;
        PUBLISH(calloc);
        PUBLISH(posix_memalign);
    }
#define COMPOSED(NAME, COMPOSITION) PUBLISH(NAME);
#include "interposed.def"
    finding--;
    shim_pass_frees_on();
}

const void *shim_next_malloc_address(void)
{
    return (const void *)(uintptr_t)shim_next.malloc;
}
