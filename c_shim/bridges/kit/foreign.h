/* Reads memory that the interpreter or the program may have given back: the only way in which bridges do.
 *
 * A pointer that is read out of a virtual machine may lead anywhere: a coroutine library may have freed the frames that the
 * machine's chain still names, and another thread may unmap a page between a check and a load. So a read is one of two:
 *
 *   owned   A plain load, inside a range that the calling thread itself keeps in use for the whole call: its own stack, the
 *           memory in which its interpreter puts the next frame. Each bridge says in a comment why a range is owned.
 *   copied  The kernel copies (process_vm_readv on this process) and reports what is gone. Nothing can fault, whatever
 *           other threads do.
 *
 * A copy costs a system call, so that a reader copies lines of 1 KiB, keeps them for the walk, and fetches at once those that
 * the thread's last walk needed. Nothing here allocates, waits or changes errno. Where the program has installed a filter of
 * system calls nothing is copied: only what is owned can be read. */
#ifndef ALLOCSAMPLE_BRIDGES_FOREIGN_H
#define ALLOCSAMPLE_BRIDGES_FOREIGN_H

#include "bridge.h"

#include <string.h>
#include <sys/uio.h>

/* Copies `bytes` bytes; false if they are not all there. */
HIDDEN bool foreign_copy(uintptr_t from, void *to, size_t bytes);

struct foreign_range {
    uintptr_t start, end; /* equal: none */
};
#define FOREIGN_RANGES 4

/* A power of two, no larger than a page, so that a line is there or is not. */
#define FOREIGN_LINE_BYTES 1024
#define FOREIGN_LINES 512
#define FOREIGN_THREADS 16

/* Copies of lines, and which lines the last walk of each thread needed. R needs some 7 for every function on its stack. For one walk
 * at a time; starts as zeros. */
struct foreign_lines {
    uint32_t count;
    bool used[FOREIGN_LINES];
    uintptr_t addresses[FOREIGN_LINES];
    uint16_t places[4 * FOREIGN_LINES]; /* by a hash of the address, where the line was last found: a hint */
    struct iovec pieces[FOREIGN_LINES]; /* for the next fetch: too large for a thread's stack */
    struct {
        uintptr_t thread;
        uint32_t count;
        uintptr_t addresses[FOREIGN_LINES];
    } last[FOREIGN_THREADS];
    uint8_t bytes[FOREIGN_LINES][FOREIGN_LINE_BYTES];
};

/* Forgets the copies of the last walk, and fetches what the last one of this thread needed. `thread` is any address that
 * tells threads apart. */
HIDDEN void foreign_lines_begin(struct foreign_lines *lines, uintptr_t thread);
/* Remembers what this walk needed. */
HIDDEN void foreign_lines_end(struct foreign_lines *lines, uintptr_t thread);

/* Reads for one walk on the calling thread. */
struct foreign_reader {
    struct foreign_range owned[FOREIGN_RANGES];
    struct foreign_lines *lines; /* NULL: each read that is not owned is a copy of its own */
};

/* The first range is what is known of the calling thread's own stack. */
HIDDEN void foreign_reader_begin(struct foreign_reader *reader, struct foreign_lines *lines);

HIDDEN bool foreign_read_copied(struct foreign_reader *reader, uintptr_t from, void *to, size_t bytes);

static inline bool foreign_is_within(const struct foreign_range *range, uintptr_t from, size_t bytes)
{
    return from >= range->start && from < range->end && bytes <= range->end - from;
}

/* Reads `bytes` bytes; false, and nothing is promised of `to`, if they are not all there. */
static inline bool foreign_read(struct foreign_reader *reader, uintptr_t from, void *to, size_t bytes)
{
    for (size_t i = 0; i < FOREIGN_RANGES; i++) {
        if (foreign_is_within(&reader->owned[i], from, bytes)) {
            memcpy(to, (const void *)from, bytes);
            return true;
        }
    }
    return foreign_read_copied(reader, from, to, bytes);
}

/* The word at `from`, or 0. */
static inline uintptr_t foreign_word(struct foreign_reader *reader, uintptr_t from)
{
    uintptr_t word;
    return foreign_read(reader, from, &word, sizeof word) ? word : 0;
}

/* Copies the text at `from`, as far as it can be read and as `room` bytes hold it, with a 0 at its end. */
HIDDEN void foreign_text(struct foreign_reader *reader, uintptr_t from, char *to, size_t room);

/* Notices that a chain leads back into itself, within twice its length (Brent): the link remembered moves on at each power of
 * two. Zero is the right initial value. */
struct foreign_chain {
    uintptr_t seen;
    size_t links, next_look;
};

static inline bool foreign_chain_repeats(struct foreign_chain *chain, uintptr_t link)
{
    if (link == chain->seen)
        return true;
    if (chain->links++ == chain->next_look) {
        chain->seen = link;
        chain->next_look = 2 * chain->next_look + 1;
    }
    return false;
}

#endif
