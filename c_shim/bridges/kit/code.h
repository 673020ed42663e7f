/* For all bridges: changing code of the program in memory. */
#ifndef ALLOCSAMPLE_BRIDGES_CODE_H
#define ALLOCSAMPLE_BRIDGES_CODE_H

#include "bridge.h"

/* Puts `length` bytes in place of those at `at`, which are in a loaded object. Other threads see the old page or the new
 * one, and no page is ever both writable and executable. No thread may stand between the first and the last instruction
 * that is replaced. False: nothing has changed, as where the system forbids to change code. */
HIDDEN bool code_put(void *at, const void *bytes, size_t length);

/* Changes of code that are prepared first: then it takes one system call for every page, and no lock. */
enum { CODE_PAGES = 16 };
struct code_changes {
    uintptr_t pages[CODE_PAGES];
    uint8_t *copies[CODE_PAGES]; /* NULL: it has taken the place of the page */
    size_t count;
};

/* Adds what code_put would do. False: there is no room or no memory. The code of these pages must stay as it is until the changes are
 * made or dropped. */
HIDDEN bool code_changes_add(struct code_changes *changes, void *at, const void *bytes, size_t length);

/* The same for what code_put_jump would do. */
HIDDEN bool code_changes_add_jump(struct code_changes *changes, void *at, const void *to);

/* Once all are added. False: the system forbids it. */
HIDDEN bool code_changes_close(struct code_changes *changes);

/* On any thread, in the middle of anything. False: some may be made, in the order in which their pages were added. */
HIDDEN bool code_changes_make(struct code_changes *changes);

/* Drops those that were not made. */
HIDDEN void code_changes_drop(struct code_changes *changes);

/* Room for code near an object's code. */
struct code_room {
    uint8_t *start; /* writable until code_room_close; NULL: none was found */
    size_t used, length;
};

/* How far a room is from an object at most. A jump reaches 2 GiB on x86-64 and 128 MiB on aarch64, and leaves the rest for the object. */
#if defined(__x86_64__)
#define CODE_ROOM_REACH (UINT64_C(1) << 30)
#else
#define CODE_ROOM_REACH (UINT64_C(64) << 20)
#endif

/* Pages for `length` bytes near `object`, the lowest address of an object. */
HIDDEN bool code_room_open(struct code_room *room, uintptr_t object, size_t length);

/* Makes it executable. False: the system forbids it. */
HIDDEN bool code_room_close(struct code_room *room);

/* What code_put_jump replaces. */
#if defined(__x86_64__)
#define CODE_JUMP_BYTES 5
#else
#define CODE_JUMP_BYTES 4
#endif

/* Returns how many bytes the first instructions at `at` have that a jump would replace. Reads `room` bytes at most. 0: one of them
 * cannot be copied to another address. `distance_at` is for code_room_original. */
HIDDEN size_t code_beginning(const uint8_t *at, size_t room, size_t *distance_at);

/* Code that does what `at` begins with, `length` bytes of whole instructions, and goes on behind them. The instructions may
 * stand anywhere, but for one, which has a 32-bit distance to data after `distance_at` bytes; 0: there is none. NULL: too
 * far. */
HIDDEN void *code_room_original(struct code_room *room, const void *at, size_t length, size_t distance_at);

/* A jump to `function`, which is anywhere. */
HIDDEN void *code_room_jump(struct code_room *room, void (*function)(void));

/* Makes the code at `at` jump to `to`, which is in a room near it: in place of its first CODE_JUMP_BYTES. */
HIDDEN bool code_put_jump(void *at, const void *to);

#endif
