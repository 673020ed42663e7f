/* The code near an allocator that its functions are led to.
 *
 * A jump at the beginning of a function, behind its `endbr64` if it has one, leads to its stub, which counts the call in the thread's
 * own counter and falls into the instructions that the jump has replaced, which go on in the function. A stub uses the flags and
 * registers that a caller cannot expect to be kept, since each of the functions may call libc. Only when a sample may be
 * due is entry_due called, with the arguments.
 *
 * A call from the allocator itself, told by its return address, is not counted: the outer one is. Nor is a jump or a call from one
 * of the functions to another one: it is made to lead behind the stub. */
#define _GNU_SOURCE
#include "emit.h"
#include "kit/code.h"

/* Bytes of a stub at most, with the moved instructions. */
enum { STUB = 256 };

static bool add_stub(struct writer *writer, const struct entries_found *all, size_t index, struct entry *entry,
                     size_t number, struct stub *stubs)
{
    const struct entry_found *found = &all->entries[index];
    struct stub *stub = &stubs[index];
    later inside = 0, is_due = 0, is_none = 0;
    enum entry_kind kind = entry->row->kind;
    stub->start = writer_here(writer);
    if (kind == ENTRY_ALLOCATES || kind == ENTRY_STORES)
        inside = emit_if_inside(writer, all);
    if (kind != ENTRY_FREES && kind != ENTRY_IN_PLACE) {
        emit_charge(writer, entry, number);
        is_due = kind == ENTRY_RESIZES ? emit_if_due(writer) : 0;
    }
    if (kind == ENTRY_FREES || kind == ENTRY_RESIZES) {
        is_none = emit_if_unmarked(writer, entry);
    } else if (kind != ENTRY_IN_PLACE) {
        is_none = emit_if_not_due(writer);
    }
    if (is_due != 0)
        emit_here(writer, is_due);
    emit_due(writer, entry);
    if (inside != 0)
        emit_here(writer, inside);
    if (is_none != 0)
        emit_here(writer, is_none);
    stub->original = writer_here(writer);
    if (!emit_moved(writer, all, found, stubs))
        return false;
    /* entry_due calls it through a pointer. */
    entry->original = writer_here(writer);
    emit_landing(writer, stub->original);
    return true;
}

/* Where the jump to the stub stands, and what it replaces. */
static void *place_of(const struct entry_found *found)
{
    return (void *)(found->start + found->skipped);
}

/* Whether it is among what a jump to a stub replaces. */
static bool is_moved(const struct entries_found *found, const struct entry_site *site)
{
    for (size_t i = 0; i < found->count; i++)
        if (site->at - (uintptr_t)place_of(&found->entries[i]) < found->entries[i].moved)
            return true;
    return false;
}

void stubs_take_back(const struct entries_found *found)
{
    for (size_t i = 0; i < found->site_count; i++)
        emit_site(&found->sites[i], found->entries[found->sites[i].to].start);
    /* A moved head may contain a site. */
    for (size_t i = 0; i < found->count; i++)
        code_put(place_of(&found->entries[i]), found->entries[i].begins + found->entries[i].skipped,
                 found->entries[i].moved);
}

bool stubs_put(const struct entries_found *found, struct entry *entries, size_t number)
{
    struct code_room room;
    struct stub stubs[ENTRIES];
    if (!code_room_open(&room, found->object, found->count * STUB))
        return false;
    struct writer writer = {.room = &room};
    bool is_made = true;
    for (size_t i = 0; i < found->count; i++)
        stubs[i] = (struct stub){writer_here(&writer), writer_here(&writer)};
    /* The second time it is known where all of them are. */
    for (size_t turn = 0; turn < 2; turn++) {
        room.used = 0;
        writer.is_far = false;
        for (size_t i = 0; i < found->count && is_made; i++)
            is_made = add_stub(&writer, found, i, &entries[i], number, stubs);
    }
    if (!is_made || writer.is_far || !code_room_close(&room))
        return false;
    bool is_put = true;
    for (size_t i = 0; i < found->site_count && is_put; i++)
        is_put = is_moved(found, &found->sites[i]) ||
                 emit_site(&found->sites[i], stubs[found->sites[i].to].original);
    for (size_t i = 0; i < found->count && is_put; i++) {
        entries[i].jump = (uintptr_t)place_of(&found->entries[i]);
        entries[i].stub = stubs[i].start;
        is_put = code_put_jump((void *)entries[i].jump, (const void *)entries[i].stub);
    }
    if (!is_put)
        stubs_take_back(found);
    return is_put;
}

bool stubs_are_there(const struct redirected *of)
{
    const struct entry *entry = &of->entries[0];
    return entry->stub != 0 && emit_jump_target(entry->jump) == entry->stub;
}
