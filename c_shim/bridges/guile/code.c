/* What code an address is in: Guile's compiled files are ELF files of its own kind, mapped as they are, with symbols and lines.
 *
 * Guile keeps a list of these images, but exports no way to read it. An image begins with its ELF header, at the beginning of a page,
 * so the header is searched for page by page from the address downwards. Images are never unmapped: what was found for an address
 * stays valid. */
#define _GNU_SOURCE
#include "guile.h"
#include "kit/foreign.h"
#include "kit/lock.h"
#include "kit/memory.h"
#include "kit/names.h"

#include <elf.h>
#include <stdio.h>

#define PAGE_BYTES 4096
#define MOST_PAGES 1024
#define IMAGES 2048
#define STANDALONE 255 /* the system that Guile's files are for */
#define MOST_SECTIONS 64
/* Cached frames by address. A large program such as Guix has tens of thousands of addresses in its stacks. */
#define BUCKETS (1 << BUCKET_BITS)
#define BUCKET_BITS 15
#define WAYS 2
/* Symbols that are read at once. */
#define SYMBOLS 128

/* What was found for an address; `ip` is 0 in an empty entry. A reader compares `ip` before and after, so it is stored last. */
struct known {
    _Atomic(uintptr_t) ip;
    _Atomic(uint32_t) number, line;
};

static struct known *known;
static struct guile_image *images;
static _Atomic(size_t) image_count;
static bridge_lock image_lock;
static struct names functions;

bool guile_code_make(void)
{
    known = memory_map(BUCKETS * WAYS * sizeof *known);
    images = memory_map(IMAGES * sizeof *images);
    return known != NULL && images != NULL && names_make(&functions);
}

void guile_code_after_fork_in_child(void)
{
    lock_release(&image_lock);
    names_after_fork_in_child(&functions);
    guile_lines_after_fork_in_child();
}

/* ---- images ---- */

static bool is_header(const Elf64_Ehdr *header)
{
    return memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_OSABI] == STANDALONE &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_shentsize == sizeof(Elf64_Shdr) && header->e_shnum <= MOST_SECTIONS &&
           header->e_shstrndx < header->e_shnum;
}

/* Where the header of the image is that may contain the address; 0: nowhere. */
static uintptr_t find_header(uintptr_t ip, Elf64_Ehdr *header)
{
    uintptr_t page = ip & ~(uintptr_t)(PAGE_BYTES - 1);
    for (int i = 0; i < MOST_PAGES && page != 0; i++, page -= PAGE_BYTES) {
        if (!foreign_copy(page, header, sizeof *header))
            return 0;
        if (is_header(header))
            return page;
    }
    return 0;
}

static void read_section(struct guile_image *image, const Elf64_Shdr *sections, const Elf64_Shdr *section, const char *name)
{
    uintptr_t start = image->base + section->sh_offset, end = start + section->sh_size;
    if (end > image->end)
        image->end = end;
    if (section->sh_type == SHT_SYMTAB && section->sh_link < MOST_SECTIONS) {
        const Elf64_Shdr *strings = &sections[section->sh_link];
        image->symbols = start;
        image->symbols_end = end;
        image->strings = image->base + strings->sh_offset;
        image->strings_end = image->strings + strings->sh_size;
    } else if (strcmp(name, ".rtl-text") == 0) {
        image->text = start;
        image->text_end = end;
    } else if (strcmp(name, ".debug_line") == 0) {
        image->lines = start;
        image->lines_end = end;
    }
}

static bool read_image(uintptr_t ip, struct guile_image *image)
{
    Elf64_Ehdr header;
    Elf64_Shdr sections[MOST_SECTIONS] = {0};
    uintptr_t base = find_header(ip, &header);
    if (base == 0 || !foreign_copy(base + header.e_shoff, sections, header.e_shnum * sizeof sections[0]))
        return false;
    *image = (struct guile_image){.base = base};
    for (size_t i = 0; i < header.e_shnum; i++) {
        char name[16] = "";
        if (!foreign_copy(base + sections[header.e_shstrndx].sh_offset + sections[i].sh_name, name, sizeof name - 1))
            return false;
        read_section(image, sections, &sections[i], name);
    }
    return ip >= image->text && ip < image->text_end;
}

static struct guile_image *known_image(uintptr_t ip)
{
    size_t count = atomic_load_explicit(&image_count, memory_order_acquire);
    for (size_t i = 0; i < count; i++)
        if (ip >= images[i].text && ip < images[i].text_end)
            return &images[i];
    return NULL;
}

static struct guile_image *image_of(uintptr_t ip)
{
    struct guile_image found;
    struct guile_image *image = known_image(ip);
    if (image != NULL || !read_image(ip, &found) || !lock_try(&image_lock))
        return image;
    image = known_image(ip);
    size_t count = atomic_load_explicit(&image_count, memory_order_relaxed);
    if (image == NULL && count < IMAGES) {
        images[count] = found;
        image = &images[count];
        atomic_store_explicit(&image_count, count + 1, memory_order_release);
    }
    lock_release(&image_lock);
    return image;
}

/* ---- functions ---- */

/* The symbol of the code at `ip`. */
static bool find_symbol(const struct guile_image *image, uintptr_t ip, Elf64_Sym *found)
{
    Elf64_Sym symbols[SYMBOLS];
    for (uintptr_t at = image->symbols; at + sizeof symbols[0] <= image->symbols_end;) {
        size_t count = (image->symbols_end - at) / sizeof symbols[0];
        if (count > SYMBOLS)
            count = SYMBOLS;
        if (!foreign_copy(at, symbols, count * sizeof symbols[0]))
            return false;
        for (size_t i = 0; i < count; i++) {
            if (ip - image->text - symbols[i].st_value >= symbols[i].st_size)
                continue;
            *found = symbols[i];
            return true;
        }
        at += count * sizeof symbols[0];
    }
    return false;
}

static void copy_name(const struct guile_image *image, const Elf64_Sym *symbol, char *name, size_t room)
{
    uintptr_t at = image->strings + symbol->st_name;
    size_t length = at < image->strings_end ? image->strings_end - at : 0;
    if (length > room - 1)
        length = room - 1;
    name[length == 0 || !foreign_copy(at, name, length) ? 0 : length] = 0;
}

/* A function without a name gets the place where it is defined. The first one of a file is what runs when it is loaded. */
static uint32_t define(const struct guile *guile, struct guile_image *image, const Elf64_Sym *symbol, const char *file)
{
    char name[1024], first_file[1024];
    uint32_t first_line = guile_lines_find(image, image->text + symbol->st_value, first_file, sizeof first_file);
    const char *slash = strrchr(file, '/');
    copy_name(image, symbol, name, sizeof name);
    if (strcmp(first_file, file) != 0)
        first_line = 0;
    if (name[0] == 0 && symbol->st_value == 0)
        snprintf(name, sizeof name, "(top level)");
    else if (name[0] == 0)
        snprintf(name, sizeof name, "lambda[%.200s:%u]", slash == NULL ? file : slash + 1, first_line);
    return names_function(&functions, guile->hooks, guile->heap, name, file, first_line);
}

static allocsample_frame find_frame(const struct guile *guile, uintptr_t ip)
{
    Elf64_Sym symbol;
    char file[1024];
    struct guile_image *image = image_of(ip);
    if (image == NULL || !find_symbol(image, ip, &symbol))
        return (allocsample_frame){0};
    uint32_t line = guile_lines_find(image, ip, file, sizeof file);
    return (allocsample_frame){.function = define(guile, image, &symbol, file), .line = line};
}

static bool find_known(struct known *bucket, uintptr_t ip, allocsample_frame *frame)
{
    for (struct known *entry = bucket; entry < bucket + WAYS; entry++) {
        if (atomic_load_explicit(&entry->ip, memory_order_acquire) != ip)
            continue;
        *frame = (allocsample_frame){.function = atomic_load_explicit(&entry->number, memory_order_relaxed),
                                     .line = atomic_load_explicit(&entry->line, memory_order_relaxed)};
        /* Another thread may have put another address here meanwhile. */
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&entry->ip, memory_order_relaxed) == ip)
            return true;
    }
    return false;
}

/* An empty entry if there is one; otherwise the entry to replace. */
static struct known *entry_for(struct known *bucket, uintptr_t ip)
{
    for (struct known *entry = bucket; entry < bucket + WAYS; entry++)
        if (atomic_load_explicit(&entry->ip, memory_order_relaxed) == 0)
            return entry;
    return &bucket[ip >> 2 & (WAYS - 1)];
}

allocsample_frame guile_code_frame(const struct guile *guile, uintptr_t ip)
{
    struct known *bucket = &known[((ip >> 1) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - BUCKET_BITS)) * WAYS];
    allocsample_frame frame;
    if (find_known(bucket, ip, &frame))
        return frame;
    frame = find_frame(guile, ip);
    if (!lock_try(&image_lock))
        return frame;
    struct known *entry = entry_for(bucket, ip);
    atomic_store_explicit(&entry->ip, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&entry->number, frame.function, memory_order_relaxed);
    atomic_store_explicit(&entry->line, frame.line, memory_order_relaxed);
    atomic_store_explicit(&entry->ip, ip, memory_order_release);
    lock_release(&image_lock);
    return frame;
}
