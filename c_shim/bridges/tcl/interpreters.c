/* The interpreters that run on the calling thread.
 *
 * Tcl keeps no list of them that a library could reach. But its functions that run code have the interpreter in hand, so that it
 * is on the thread's stack. It is recognised by its pointer to the table of stubs, which extensions find Tcl by: that is in
 * Tcl's library, and begins with a number. Then it must be what the layout says: its thread is this one, and its global
 * namespace is its own.
 *
 * A pointer may be left on the stack by a function that has returned: an interpreter counts only while it runs a command. */
#define _GNU_SOURCE
#include "kit/thread_pointer.h"
#include "tcl.h"

/* What the table of stubs begins with, in Tcl 8 and in Tcl 9 with pointers of 8 bytes. */
enum { MAGIC_8 = (int)0xFCA3BACF, MAGIC_9 = (int)0xFCA3BACB + 8 };
/* Words of the stack that a walk looks at, and new addresses among them. */
#define MOST_WORDS 16384
#define MOST_PROBES 24
#define KNOWN (sizeof ((struct tcl_looked *)0)->known / sizeof(uintptr_t))
/* What an address in the heap can be. */
#define LOWEST 65536
#define HIGHEST (UINT64_C(1) << 47)
/* Walks after which an address that was none is looked at again: it may be an interpreter that was not finished. */
#define FORGET_AFTER 8

enum verdict { NONE, OTHER_LAYOUT, RUNS };

static bool has_stubs(struct tcl_view *view, uintptr_t address)
{
    const struct tcl *tcl = view->tcl;
    uintptr_t stubs;
    int magic;
    return foreign_copy(address + tcl->layout->stubs, &stubs, sizeof stubs) && stubs >= tcl->start && stubs < tcl->end &&
           foreign_copy(stubs, &magic, sizeof magic) && magic == (tcl->layout->major == 8 ? MAGIC_8 : MAGIC_9);
}

static enum verdict verdict_on(struct tcl_view *view, uintptr_t address)
{
    const struct tcl *tcl = view->tcl;
    const struct tcl_layout *layout = tcl->layout;
    struct foreign_reader *reader = &view->reader;
    uintptr_t stubs = foreign_word(reader, address + layout->stubs);
    uintptr_t global = foreign_word(reader, address + layout->global_namespace);
    uintptr_t root = foreign_word(reader, address + layout->root_frame);
    uintptr_t thread = foreign_word(reader, address + layout->thread);
    if (stubs < tcl->start || stubs >= tcl->end || global == 0)
        return NONE; /* it is gone, or is being made */
    if (foreign_word(reader, global + layout->namespace_interpreter) != address || root == 0 ||
        foreign_word(reader, root + layout->frame_namespace) != global || foreign_word(reader, address + layout->environment) == 0)
        return OTHER_LAYOUT;
    if (thread != (uintptr_t)thread_pointer())
        return NONE;
    return tcl_count(view, address + layout->levels) > 0 ? RUNS : NONE;
}

static size_t hash_of(uintptr_t address)
{
    return (address >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 54;
}

static bool is_known(const struct tcl_looked *looked, uintptr_t address)
{
    for (size_t i = 0; i < KNOWN; i++)
        if (looked->known[i] == address)
            return true;
    return false;
}

/* Whether the address may be an interpreter's. It asks the kernel about new ones. */
static bool is_candidate(struct tcl_view *view, struct tcl_looked *looked, uintptr_t address, size_t *probes)
{
    uintptr_t *other = &looked->others[hash_of(address)];
    if (address % 16 != 0 || address < LOWEST || address > HIGHEST || *other == address)
        return false;
    if (is_known(looked, address))
        return true;
    if (foreign_is_within(&view->reader.owned[0], address, 1) || *probes == MOST_PROBES)
        return false;
    ++*probes;
    if (!has_stubs(view, address)) {
        *other = address;
        return false;
    }
    looked->known[looked->next_known++ % KNOWN] = address;
    return true;
}

/* Puts it behind those that are there, unless one of them has called it: that one is further out, too. */
static void put(struct tcl_interpreters *interpreters, size_t last_seen[TCL_NESTED], uintptr_t address, size_t at)
{
    for (size_t i = 0; i < interpreters->count; i++) {
        if (interpreters->found[i] != address)
            continue;
        last_seen[i] = at;
        return;
    }
    if (interpreters->count == TCL_NESTED)
        return;
    last_seen[interpreters->count] = at;
    interpreters->found[interpreters->count++] = address;
}

static void keep_outer(struct tcl_interpreters *interpreters, const size_t last_seen[TCL_NESTED])
{
    size_t kept = 0, outermost = 0;
    for (size_t i = 0; i < interpreters->count; i++) {
        if (i > 0 && last_seen[i] < outermost)
            continue;
        outermost = last_seen[i];
        interpreters->found[kept++] = interpreters->found[i];
    }
    interpreters->count = kept;
}

uintptr_t tcl_interpreters_top_of_stack(const struct foreign_range *stack)
{
    const struct shim_caller *caller = shim_services.sampled_caller();
    uintptr_t top = caller != NULL ? caller->sp : tcl_blocks_top_of_stack;
    return foreign_is_within(stack, top, sizeof top) ? (top + 7) & ~(uintptr_t)7 : stack->end;
}

/* If an interpreter's command is an alias that another one runs, the other one is further in and further out on the stack. All
 * of its frames are in one chain, so that only its own are shown. */
void tcl_interpreters_find(struct tcl_view *view, struct tcl_looked *looked, struct tcl_interpreters *interpreters)
{
    const struct foreign_range *stack = &view->reader.owned[0];
    uintptr_t top = tcl_interpreters_top_of_stack(stack), before = 0;
    size_t words = (stack->end - top) / sizeof(uintptr_t), probes = 0, last_seen[TCL_NESTED];
    *interpreters = (struct tcl_interpreters){0};
    if (looked->walks++ % FORGET_AFTER == 0)
        memset(looked->others, 0, sizeof looked->others);
    for (size_t i = 0; i < words && i < MOST_WORDS; i++) {
        uintptr_t word = ((const uintptr_t *)top)[i];
        if (word == before || !is_candidate(view, looked, word, &probes))
            continue;
        before = word;
        enum verdict verdict = verdict_on(view, word);
        interpreters->is_other_layout |= verdict == OTHER_LAYOUT;
        if (verdict != RUNS)
            continue;
        put(interpreters, last_seen, word, i);
        /* Those further out are known from when they were the innermost. */
        probes = MOST_PROBES;
    }
    keep_outer(interpreters, last_seen);
}
