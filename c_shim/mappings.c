/* mmap and its kin: memory that is mapped past malloc, made usable, and given back.
 *
 * Each entry calls the next function and then reports the change to the agent; munmap reports it first, since another thread may
 * be given the same addresses at once. libc's own calls (malloc's arenas and large blocks, the loader's files) do not come here:
 * their owners are known. A program that has the system call's instruction in its own code is not seen; what it maps is found
 * in the list of mappings, without a stack. */
#define _GNU_SOURCE
#include "attach.h"
#include "confinement.h"
#include "reserved.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

/* Where this library begins and ends: the linker's. */
extern HIDDEN const char __ehdr_start[], _end[];

/* Whether the shim or a bridge maps this for itself: `caller` is the return address of the entry. */
static bool is_ours(const void *caller)
{
    return (uintptr_t)caller - (uintptr_t)__ehdr_start < (uintptr_t)(_end - __ehdr_start);
}

/* What the kernel maps and unmaps for a length: whole pages. */
static size_t whole_pages(size_t bytes)
{
    size_t page_bytes = (size_t)getpagesize();
    return (bytes + page_bytes - 1) & ~(page_bytes - 1);
}

/* ---- what no recording has ---- */

/* An allocator in front of ours maps its memory when our own constructor first allocates, before the agent is on; and a forked child
 * has what its parent mapped. So calls before the first recording are kept, and large ones after it, until the table is full.
 * Of a stack only the caller is kept. */
#define KEPT 64
#define LARGE ((size_t)16 << 20)

static struct {
    _Atomic(uintptr_t) start, bytes; /* 0: it is not mapped any more, or not written yet */
    uintptr_t caller;
    enum shim_change change;
    uint32_t protection, flags;
} kept[KEPT];
static _Atomic(size_t) kept_count;
static _Atomic(bool) has_recorded;

static void keep(const void *caller, const struct shim_mapping *mapping)
{
    bool is_large = mapping->bytes >= LARGE;
    if ((!is_large && atomic_load_explicit(&has_recorded, memory_order_relaxed)) ||
        atomic_load_explicit(&kept_count, memory_order_relaxed) >= KEPT)
        return;
    size_t at = atomic_fetch_add_explicit(&kept_count, 1, memory_order_relaxed);
    if (at >= KEPT)
        return;
    kept[at].caller = (uintptr_t)caller;
    kept[at].change = mapping->change;
    kept[at].protection = mapping->protection;
    kept[at].flags = mapping->flags;
    atomic_store_explicit(&kept[at].start, mapping->start, memory_order_relaxed);
    /* Release: a reader that sees the length also sees the other fields. */
    atomic_store_explicit(&kept[at].bytes, mapping->bytes, memory_order_release);
}

/* Of a mapping that loses its middle the lower part is kept. */
static void forget(uintptr_t start, size_t bytes)
{
    uintptr_t end = start + bytes;
    size_t count = atomic_load_explicit(&kept_count, memory_order_relaxed);
    for (size_t i = 0; i < (count < KEPT ? count : KEPT); i++) {
        uintptr_t from = atomic_load_explicit(&kept[i].start, memory_order_relaxed);
        uintptr_t to = from + atomic_load_explicit(&kept[i].bytes, memory_order_acquire);
        if (to <= start || end <= from)
            continue;
        bool keeps_head = from < start, keeps_tail = end < to && !keeps_head;
        if (keeps_tail)
            atomic_store_explicit(&kept[i].start, end, memory_order_relaxed);
        atomic_store_explicit(&kept[i].bytes, keeps_head ? start - from : keeps_tail ? to - end : 0,
                              memory_order_release);
    }
}

bool shim_kept_mapping(size_t index, struct shim_kept_mapping *found)
{
    atomic_store_explicit(&has_recorded, true, memory_order_relaxed);
    if (index >= KEPT || index >= atomic_load_explicit(&kept_count, memory_order_relaxed))
        return false;
    found->mapping.bytes = atomic_load_explicit(&kept[index].bytes, memory_order_acquire);
    found->mapping.start = atomic_load_explicit(&kept[index].start, memory_order_relaxed);
    found->mapping.change = kept[index].change;
    found->mapping.protection = kept[index].protection;
    found->mapping.flags = kept[index].flags;
    found->caller = kept[index].caller;
    return true;
}

static void tell(const void *caller, enum shim_change change, const void *start, size_t bytes, int protection, int flags)
{
    const enum shim_change own = change == SHIM_THREAD ? SHIM_OWN_THREAD : SHIM_OWN;
    const struct shim_mapping mapping = {
        .start = (uintptr_t)start,
        .bytes = bytes,
        .change = change != SHIM_UNMAP && is_ours(caller) ? own : change,
        .protection = (uint32_t)protection,
        .flags = (uint32_t)flags,
    };
    if (mapping.change == SHIM_UNMAP) {
        forget(mapping.start, mapping.bytes);
        shim_reserved_unmap(mapping.start, mapping.bytes);
    } else if (change == SHIM_MAP) {
        shim_reserved_map(mapping.start, mapping.bytes, protection, flags);
    } else if (change == SHIM_REMAP) {
        shim_reserved_map(mapping.start, mapping.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    }
    const struct shim_slow_path *agent = shim_agent();
    if (agent != NULL) {
        int saved_errno = errno;
        agent->on_mapping(&shim_thread, &mapping);
        errno = saved_errno;
    }
    /* Last: the recording that this call has begun has it. */
    if (mapping.change < SHIM_THREAD)
        keep(caller, &mapping);
}

void *shim_map_own(size_t bytes)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *mapped = NEXT(mmap)(NULL, bytes, protection, flags, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    tell(__ehdr_start, SHIM_MAP, mapped, whole_pages(bytes), protection, flags);
    return mapped;
}

#define CALLER __builtin_return_address(0)

EXPORT void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *mapped = NEXT(mmap)(address, bytes, protection, flags, fd, offset);
    if (mapped != MAP_FAILED)
        tell(CALLER, SHIM_MAP, mapped, whole_pages(bytes), protection, flags);
    return mapped;
}

EXPORT void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
    void *mapped = NEXT(mmap64)(address, bytes, protection, flags, fd, offset);
    if (mapped != MAP_FAILED)
        tell(CALLER, SHIM_MAP, mapped, whole_pages(bytes), protection, flags);
    return mapped;
}

EXPORT int munmap(void *address, size_t bytes)
{
    tell(CALLER, SHIM_UNMAP, address, whole_pages(bytes), 0, 0);
    return NEXT(munmap)(address, bytes);
}

static void tell_pages(const void *start, size_t bytes, const void *moved_to)
{
    const struct shim_slow_path *agent = shim_agent();
    if (agent != NULL) {
        int saved_errno = errno;
        agent->on_pages((uintptr_t)start, bytes, (uintptr_t)moved_to);
        errno = saved_errno;
    }
}

/* After MADV_FREE the pages are still resident, and may be used again without a fault: samples of pages stay. */
EXPORT int madvise(void *address, size_t bytes, int advice)
{
    int result = NEXT(madvise)(address, bytes, advice);
    bool discards = advice == MADV_DONTNEED || advice == MADV_REMOVE;
    if (UNLIKELY(discards || advice == MADV_FREE) && result == 0) {
        if (discards)
            tell_pages(address, whole_pages(bytes), NULL);
        if (!is_ours(CALLER))
            tell(CALLER, SHIM_DISCARD, address, whole_pages(bytes), 0, advice);
    }
    return result;
}

/* ---- reserved memory ---- */

struct protecting {
    const void *caller;
    enum shim_change change;
    int protection;
};

static void tell_run(void *context, uintptr_t start, size_t bytes)
{
    const struct protecting *it = context;
    tell(it->caller, it->change, (const void *)start, bytes, it->protection, MAP_PRIVATE | MAP_ANONYMOUS);
}

/* pkey_mprotect, which V8 calls for its code where the processor has keys, is not here: that code belongs to the call that mapped
 * it. */
EXPORT int mprotect(void *address, size_t bytes, int protection)
{
    int result = NEXT(mprotect)(address, bytes, protection);
    if (result != 0 || is_ours(CALLER))
        return result;
    int saved_errno = errno;
    struct protecting it = {CALLER, (protection & PROT_WRITE) != 0 ? SHIM_COMMIT : SHIM_UNCOMMIT, protection};
    if (it.change == SHIM_COMMIT)
        shim_reserved_commit((uintptr_t)address, whole_pages(bytes), tell_run, &it);
    else if (protection == PROT_NONE)
        shim_reserved_uncommit((uintptr_t)address, whole_pages(bytes), tell_run, &it);
    errno = saved_errno;
    return result;
}

EXPORT void *mremap(void *address, size_t bytes, size_t new_bytes, int flags, ...)
{
    enum { DONTUNMAP = 4 };
    void *new_address = NULL;
    if ((flags & (MREMAP_FIXED | DONTUNMAP)) != 0) {
        va_list arguments;
        va_start(arguments, flags);
        new_address = va_arg(arguments, void *);
        va_end(arguments);
    }
    void *mapped = NEXT(mremap)(address, bytes, new_bytes, flags, new_address);
    if (mapped == MAP_FAILED)
        return mapped;
    bytes = whole_pages(bytes);
    new_bytes = whole_pages(new_bytes);
    if (mapped == address) {
        if (new_bytes < bytes)
            tell(CALLER, SHIM_UNMAP, (char *)address + new_bytes, bytes - new_bytes, 0, 0);
        else if (new_bytes > bytes)
            tell(CALLER, SHIM_REMAP, (char *)address + bytes, new_bytes - bytes, 0, 0);
    } else {
        tell_pages(address, bytes, mapped);
        if ((flags & DONTUNMAP) == 0)
            tell(CALLER, SHIM_UNMAP, address, bytes, 0, 0);
        tell(CALLER, SHIM_REMAP, mapped, new_bytes, 0, 0);
    }
    return mapped;
}

static void tell_break(const void *caller, char *before, intptr_t increment)
{
    if (before == (void *)-1 || increment == 0)
        return;
    if (increment > 0)
        tell(caller, SHIM_BREAK, before, (size_t)increment, PROT_READ | PROT_WRITE, 0);
    else
        tell(caller, SHIM_UNMAP, before + increment, (size_t)-increment, 0, 0);
}

EXPORT void *sbrk(intptr_t increment)
{
    void *before = NEXT(sbrk)(increment);
    tell_break(CALLER, before, increment);
    return before;
}

/* glibc's other name of it, which tcmalloc calls from a sbrk of its own. */
void *__sbrk(intptr_t increment);
EXPORT void *__sbrk(intptr_t increment)
{
    void *before = NEXT(__sbrk)(increment);
    tell_break(CALLER, before, increment);
    return before;
}

/* Where the data segment ends, -1 if that is not to be had. */
static char *present_break(void)
{
    return NEXT(sbrk)(0);
}

EXPORT int brk(void *end)
{
    char *before = present_break();
    int result = NEXT(brk)(end);
    if (result == 0)
        tell_break(CALLER, before, (char *)end - before);
    return result;
}

EXPORT void *shmat(int segment, const void *address, int flags)
{
    void *attached = NEXT(shmat)(segment, address, flags);
    struct shmid_ds status;
    int saved_errno = errno;
    /* A filter of system calls may end the process for asking. */
    bool may_ask = shim_agent() != NULL && !shim_is_filtered();
    if (attached != (void *)-1 && may_ask && shmctl(segment, IPC_STAT, &status) == 0)
        tell(CALLER, SHIM_ATTACH, attached, status.shm_segsz, (flags & SHM_RDONLY) != 0 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED);
    errno = saved_errno;
    return attached;
}

/* shmdt is not here: it does not say how long the segment is, and what is mapped there next takes its place. */

void shim_tell_thread(const void *caller, uintptr_t descriptor, size_t stack_bytes)
{
    tell(caller, SHIM_THREAD, (const void *)descriptor, stack_bytes, 0, 0);
}
