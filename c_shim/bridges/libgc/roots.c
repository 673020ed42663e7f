/* Our own data, which libgc takes for roots as that of every library: megabytes, in which nothing of the program's is. libgc is told to
 * leave them out, or each collection would take a third of a millisecond longer, and the range stays so: we are never unloaded. */
#define _GNU_SOURCE
#include "libgc.h"

#include <link.h>
#include <string.h>

/* Writable segments of one object. */
#define SEGMENTS 4

static struct {
    void (*exclude)(void *start, void *end);
} libgc;
static struct {
    void *start, *end;
} segments[SEGMENTS];
static size_t segment_count;
static _Atomic(bool) is_excluded;

static int note_own_segments(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    const struct shim_object *own = argument;
    if ((const void *)info->dlpi_phdr != own->headers)
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum && segment_count < SEGMENTS; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || (segment->p_flags & PF_W) == 0)
            continue;
        segments[segment_count].start = (void *)(info->dlpi_addr + segment->p_vaddr);
        segments[segment_count++].end = (void *)(info->dlpi_addr + segment->p_vaddr + segment->p_memsz);
    }
    return 1;
}

void libgc_roots_prepare(libgc_finder *find_function)
{
    struct shim_object own;
    void *exclude = find_function("GC_exclude_static_roots");
    memcpy(&libgc.exclude, &exclude, sizeof exclude);
    if (segment_count == 0 && shim_services.find_object(&segment_count, &own))
        dl_iterate_phdr(note_own_segments, &own);
}

void libgc_exclude_own_data(void)
{
    if (libgc.exclude == NULL || atomic_exchange(&is_excluded, true))
        return;
    for (size_t i = 0; i < segment_count; i++)
        libgc.exclude(segments[i].start, segments[i].end);
}
