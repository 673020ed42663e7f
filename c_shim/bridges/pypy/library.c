/* The library of PyPy in this process, and where its build has what we need. */
#define _GNU_SOURCE
#include "kit/memory.h"
#include "pypy.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Builds that need no search. */
static const struct pypy_build builds[] = {
#if defined(__x86_64__)
    /* Debian 12: pypy3-lib 7.3.11+dfsg-2+deb12u3, amd64 */
    {.id = {0x28, 0x29, 0xc3, 0xe9, 0x50, 0xc6, 0x30, 0xb7, 0xa0, 0x52,
            0x43, 0x1a, 0xed, 0x23, 0xa8, 0xd8, 0x04, 0x09, 0xe8, 0x7c},
     .reserve = 0x209fd40, .collect = 0x209da30, .step = 0x209e8b0, .entry = 0x22f90d0,
     .log_start = 0x232a6e0, .log_stop = 0x232a810, .log_sections = 0x3867a20,
     .gc = 0x2823980, .state = 0xc8, .threshold = 0x168, .free = 0x190, .top = 0x1b0, .large_bytes = 0x228,
     .small_bytes = 0x2823968,
     .type_names = 0x33f99e0, .type_ids = 0x33f3580,
     .frames_of_code = 0x2313ac0, .lock = 0x388cb00, .ident = 0x38, .stack = 0x48, .thread_bytes = 0x50,
     .codes = 0x298a910, .handles = 0x10, .name = 0x8, .number = 0x48, .file = 0x78, .line = 0x80,
     .code_type = 0x21098, .string_type = 0x48},
#else
    /* Debian 12: pypy3-lib 7.3.11+dfsg-2+deb12u3, arm64 */
    {.id = {0x1b, 0xa7, 0xc8, 0xcc, 0x63, 0x3d, 0x32, 0xf0, 0x11, 0xd5,
            0x2c, 0xac, 0x36, 0x08, 0xb3, 0x77, 0x2f, 0x19, 0xea, 0xf7},
     .reserve = 0x1e7b4c0, .collect = 0x1e79460, .step = 0x1e7a1e0, .entry = 0x20acbb0,
     .log_start = 0x20dc2f0, .log_stop = 0x20dc430, .log_sections = 0x33889e8,
     .gc = 0x25edfd0, .state = 0xc8, .threshold = 0x168, .free = 0x190, .top = 0x1b0, .large_bytes = 0x228,
     .small_bytes = 0x25edfc8,
     .type_names = 0x3064828, .type_ids = 0x305e5d0,
     .lock = 0x33adb00, .ident = 0x38, .stack = 0x48, .thread_bytes = 0x50, .thread_key = 0x33af000,
     .codes = 0x274d4f0, .handles = 0x10, .name = 0x8, .number = 0x48, .file = 0x78, .line = 0x80,
     .code_type = 0x1f150, .string_type = 0x48},
    /* Debian 13: pypy3 7.3.19+dfsg-2, arm64 */
    {.id = {0xee, 0xd0, 0x2b, 0x5a, 0xab, 0x2d, 0xd2, 0xe0, 0xc1, 0x5c,
            0xf1, 0xd8, 0x6b, 0x4b, 0xdf, 0xba, 0x28, 0x65, 0x34, 0x81},
     .reserve = 0x2085d00, .collect = 0x2083d10, .step = 0x2084a6c, .entry = 0x2289960,
     .log_start = 0x22d3180, .log_stop = 0x22d3300, .log_sections = 0x3680a50,
     .gc = 0x28256f8, .state = 0xd0, .threshold = 0x170, .free = 0x198, .top = 0x1b8, .large_bytes = 0x230,
     .small_bytes = 0x28256f0,
     .type_names = 0x330b690, .type_ids = 0x33053d0,
     .lock = 0x36a5ef8, .ident = 0x38, .stack = 0x48, .thread_bytes = 0x50, .thread_key = 0x36a7560,
     .codes = 0x298fd00, .handles = 0x10, .name = 0x8, .number = 0x50, .file = 0x80, .line = 0x88,
     .code_type = 0x229f8, .string_type = 0x48},
#endif
};

static struct pypy_build found;
static struct pypy_votes votes[PYPY_BALLOTS];
static struct pypy_library library;
static const char *path;

static bool has_id(const struct dl_phdr_info *object, const uint8_t *id, size_t id_length)
{
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_NOTE)
            continue;
        const uint8_t *at = (const uint8_t *)(object->dlpi_addr + segment->p_vaddr), *end = at + segment->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const ElfW(Nhdr) *)at;
            const uint8_t *name = at + sizeof *note, *content = name + ((note->n_namesz + 3u) & ~3u);
            if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz == id_length && note->n_namesz == 4 &&
                memcmp(name, "GNU", 4) == 0 && memcmp(content, id, id_length) == 0)
                return true;
            at = content + ((note->n_descsz + 3u) & ~3u);
        }
    }
    return false;
}

static int look_at(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)size;
    (void)argument;
    if (strstr(object->dlpi_name, "libpypy") == NULL)
        return 0;
    path = object->dlpi_name;
    library = (struct pypy_library){.votes = votes, .base = object->dlpi_addr, .thread = object->dlpi_tls_data};
    for (size_t i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t end = object->dlpi_addr + segment->p_vaddr + segment->p_memsz;
        if (segment->p_type == PT_LOAD && end > library.end)
            library.end = end;
    }
    for (size_t i = 0; i < sizeof builds / sizeof builds[0]; i++) {
        if (has_id(object, builds[i].id, sizeof builds[i].id))
            library.build = &builds[i];
    }
    library.is_verified = library.build != NULL;
    return 1;
}

#if defined(__x86_64__)

/* Searches the file and not the loaded library, whose pages would stay in memory. */
static const char *search(void)
{
    enum { ROOM_BYTES = 4 << 20 };
    const char *why = "its file cannot be read";
    int file = open(path, O_RDONLY | O_CLOEXEC);
    off_t length = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    void *bytes = length <= 0 ? MAP_FAILED : mmap(NULL, (size_t)length, PROT_READ, MAP_PRIVATE, file, 0);
    struct pypy_search with = {.room = memory_map(ROOM_BYTES), .room_bytes = ROOM_BYTES};
    void *uncompress = dlsym(RTLD_DEFAULT, "uncompress");
    memcpy(&with.uncompress, &uncompress, sizeof uncompress);
    if (file >= 0)
        close(file);
    if (bytes != MAP_FAILED && with.room != NULL)
        why = pypy_find(bytes, (size_t)length, &with, &found, votes);
    if (bytes != MAP_FAILED)
        munmap(bytes, (size_t)length);
    if (with.room != NULL)
        munmap(with.room, ROOM_BYTES);
    return why;
}

#else

static const char *search(void)
{
    return "on this processor no other build is searched for";
}

#endif

const struct pypy_library *pypy_library_here(void)
{
    dl_iterate_phdr(look_at, NULL);
    if (path == NULL)
        return NULL;
    if (!library.is_verified) {
        const char *why = search();
        if (why != NULL) {
            shim_services.decline("pypy", "this build of PyPy is not known, and", why);
            return NULL;
        }
        library.build = &found;
    }
    return &library;
}
