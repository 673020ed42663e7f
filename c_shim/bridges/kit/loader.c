/* See loader.h. */
#define _GNU_SOURCE
#include "kit/loader.h"

#include "kit/aarch64.h"
#include "kit/code.h"
#include "kit/instructions.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>

/* For a jump to anywhere. */
#define JUMP_ROOM 16

#pragma weak _r_debug

/* Objects that can be known, and new ones at a time that are reported. */
#define OBJECTS 2048
#define NEW_OBJECTS 256

static void (*on_mapped)(uintptr_t object);
static void (*on_missed)(const char *why);

/* Everything below is written under the loader's lock. */
static struct list {
    unsigned long long added, removed; /* in the life of the process */
    size_t count;
    const void *headers[OBJECTS]; /* no two objects have the same */
} lists[2];
static struct list *known = &lists[0], *now = &lists[1];
/* There were more objects than can be known, so that no object can be told from a new one. */
static bool is_too_many;

/* Why objects were not reported, and whether that was said. */
static struct missed {
    const char *why;
    bool is_said;
} off = {.why = "were opened while the agent was off"},
  filtered = {.why = "were opened behind a filter of system calls"},
  too_many = {.why = "were opened beyond the number that can be known"};

static void miss(struct missed *missed)
{
    if (!missed->is_said)
        on_missed(missed->why);
    missed->is_said = true;
}

/* The first object is enough for the numbers. */
static int count_changes(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct list *list = argument;
    (void)size;
    list->added = info->dlpi_adds;
    list->removed = info->dlpi_subs;
    return 1;
}

static int note_object(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct list *list = argument;
    (void)size;
    if (list->count == OBJECTS)
        is_too_many = true;
    else
        list->headers[list->count++] = info->dlpi_phdr;
    return is_too_many;
}

static bool is_known(const struct dl_phdr_info *info)
{
    for (size_t i = 0; i < known->count; i++)
        if (known->headers[i] == info->dlpi_phdr)
            return true;
    return false;
}

static uintptr_t new_objects[NEW_OBJECTS];
static size_t new_count;

static int note_new(struct dl_phdr_info *info, size_t size, void *argument)
{
    (void)size;
    (void)argument;
    for (size_t i = 0; i < info->dlpi_phnum && !is_known(info); i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD || info->dlpi_phdr[i].p_offset != 0)
            continue;
        if (new_count < NEW_OBJECTS)
            new_objects[new_count++] = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        else
            miss(&too_many);
    }
    return 0;
}

/* After the list was read, whose lock other threads need to unwind. */
static void report_new(void)
{
    new_count = 0;
    dl_iterate_phdr(note_new, NULL);
    for (size_t i = 0; i < new_count; i++)
        on_mapped(new_objects[i]);
}

/* False: as it was. */
static bool has_changed(void)
{
    dl_iterate_phdr(count_changes, now);
    return now->added != known->added || now->removed != known->removed;
}

static void know_all(void)
{
    struct list *before = known;
    now->count = 0;
    dl_iterate_phdr(note_object, now);
    known = now;
    now = before;
}

static void see_new(void)
{
    if (!shim_services.is_on())
        miss(&off);
    else if (!shim_services.is_unfiltered())
        miss(&filtered);
    else
        report_new();
}

/* Objects that were not reported become known, too: they are never new any more. */
static void on_change(void)
{
    int saved_errno = errno;
    if (!is_too_many && has_changed()) {
        if (now->added != known->added)
            see_new();
        know_all();
        if (is_too_many)
            miss(&too_many);
    }
    errno = saved_errno;
}

#if defined(__x86_64__)

enum { JUMP = 5, ALIGNMENT = 16 };

/* Whether it is [endbr64] ret, and what fills up to the next function behind it, with room for a jump. */
static bool does_nothing(const uint8_t *code, size_t *skipped)
{
    static const uint8_t endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
    enum { RETURN = 0xc3, NOP = 0x90, TRAP = 0xcc };
    *skipped = memcmp(code, endbr64, sizeof endbr64) == 0 ? sizeof endbr64 : 0;
    if (code[*skipped] != RETURN)
        return false;
    for (size_t at = *skipped + 1; at < *skipped + JUMP;) {
        const uint8_t *filling = code + at;
        while (*filling == 0x66 || *filling == 0x2e)
            filling++;
        if (*filling != NOP && *filling != TRAP && (filling[0] != 0x0f || filling[1] != 0x1f))
            return false;
        struct instruction next = instruction_at(code + at, ALIGNMENT - at, 0);
        at += *filling == TRAP ? 1 : next.length;
        if (next.length == 0)
            return false;
    }
    return true;
}

#else

enum { ALIGNMENT = AARCH64_BYTES };

/* Whether it is [bti or paciasp] ret. */
static bool does_nothing(const uint8_t *code, size_t *skipped)
{
    enum { RETURN = (int32_t)0xd65f03c0 };
    uint32_t first, second;
    memcpy(&first, code, sizeof first);
    *skipped = 0;
    if (!aarch64_is_hint(first))
        return first == (uint32_t)RETURN;
    memcpy(&second, code + sizeof first, sizeof second);
    return second == (uint32_t)RETURN;
}

#endif

bool loader_watch(void (*mapped)(uintptr_t object), void (*missed)(const char *why))
{
    size_t skipped;
    /* musl's loader calls its function at another time. Not a weak reference: Rust's library has a strong one, which the linker would make
     * of it, and musl's loader would refuse the agent. */
    if (&_r_debug == NULL || dlsym(RTLD_DEFAULT, "gnu_get_libc_version") == NULL)
        return false;
    uintptr_t at = _r_debug.r_brk;
    struct code_room room;
    if (at == 0 || at % ALIGNMENT != 0 || !does_nothing((const uint8_t *)at, &skipped) ||
        !code_room_open(&room, at, JUMP_ROOM))
        return false;
    const void *jump = code_room_jump(&room, on_change);
    on_mapped = mapped;
    on_missed = missed;
    has_changed();
    know_all();
    return code_room_close(&room) && code_put_jump((void *)(at + skipped), jump);
}
