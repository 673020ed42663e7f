/* The calling thread's Tcl stack, from the call frames of the interpreters that run on it.
 *
 *     interpreter                the innermost one; then those that have called it (interpreters.c)
 *       framePtr                 the newest call frame
 *         call frame: procedure  a frame; what it is doing is in the newest CmdFrame that belongs to it (places.c)
 *         call frame: namespace  no frame: `namespace eval` runs in the code that calls it
 *       root frame               code outside of procedures
 *     coroutine                  a chain of its own, which ends in the root frame: its caller's chain follows
 *
 * malloc may be called anywhere in Tcl. So all of it is foreign memory (foreign.h), and the length of each chain is bounded. */
#define _GNU_SOURCE
#include "kit/thread_pointer.h"
#include "kit/walkers.h"
#include "tcl.h"

#define IS_PROCEDURE 1
#define MOST_FRAMES 65536
#define MOST_COMMANDS 65536
/* Coroutines that have resumed each other. */
#define MOST_COROUTINES 32
/* Walks that find an interpreter that is not what the layout says. */
#define TRIES 200
/* Threads that walk at the same time. */
#define WALKERS 16

/* What one walk uses. */
struct tcl_walker {
    struct walker walker; /* first */
    struct tcl_looked looked;
    uint8_t names[TCL_KNOWN_NAMES_BYTES];
    uint8_t places[TCL_KNOWN_PLACES_BYTES];
};

struct walk {
    struct tcl_view view;
    struct tcl_walker *walker;
    allocsample_frame *frames;
    size_t capacity, count;
    bool is_newest; /* no call frame of this chain was read yet */
};

/* Where a chain of calls begins. */
struct chain {
    uintptr_t frame, command;
};

static struct walkers walkers;
static const struct tcl *_Atomic current;
static _Atomic(unsigned) tries;
static _Atomic(bool) is_believed;

/* ---- one interpreter ---- */

static struct tcl_known_places *places_of(struct walk *walk)
{
    return (struct tcl_known_places *)walk->walker->places;
}

/* The place of what runs in `frame`: that of the newest of its commands which has one. `*command` is then the oldest one that
 * does not belong to it. */
static struct tcl_place place_in(struct walk *walk, uintptr_t frame, uintptr_t *command)
{
    const struct tcl_layout *layout = walk->view.tcl->layout;
    struct foreign_reader *reader = &walk->view.reader;
    struct foreign_chain chain = {0};
    struct tcl_place place = {0};
    if (walk->is_newest)
        tcl_places_of_running(&walk->view, places_of(walk), frame, *command, &place);
    walk->is_newest = false;
    for (int i = 0; i < MOST_COMMANDS && *command != 0; i++) {
        if (foreign_word(reader, *command + layout->at_frame) != frame)
            break;
        if (place.file == 0)
            place = tcl_places_of_command(&walk->view, places_of(walk), *command);
        *command = foreign_word(reader, *command + layout->at_next);
        if (foreign_chain_repeats(&chain, *command))
            *command = 0;
    }
    return place;
}

static void put(struct walk *walk, allocsample_frame frame)
{
    if (frame.function != 0 && walk->count < walk->capacity)
        walk->frames[walk->count++] = frame;
}

/* From the newest call frame to the root. What namespaces run belongs to the procedure that they are called by. False: it ends
 * elsewhere. */
static bool read_chain(struct walk *walk, struct chain from, uintptr_t root, struct tcl_place *at_root)
{
    const struct tcl_layout *layout = walk->view.tcl->layout;
    struct foreign_reader *reader = &walk->view.reader;
    struct foreign_chain chain = {0};
    struct tcl_place inner = {0};
    uintptr_t frame = from.frame;
    for (int i = 0; i < MOST_FRAMES && frame != 0; i++) {
        int32_t flags;
        struct tcl_place place = place_in(walk, frame, &from.command);
        if (inner.file != 0)
            place = inner;
        if (frame == root) {
            *at_root = place;
            return true;
        }
        if (foreign_chain_repeats(&chain, frame) || !foreign_read(reader, frame + layout->frame_flags, &flags, sizeof flags))
            return false;
        inner = (flags & IS_PROCEDURE) != 0 ? (struct tcl_place){0} : place;
        if ((flags & IS_PROCEDURE) != 0)
            put(walk, tcl_names_frame(&walk->view, (struct tcl_known_names *)walk->walker->names, places_of(walk), frame, &place));
        frame = foreign_word(reader, frame + layout->frame_caller);
    }
    return false;
}

static void read_interpreter(struct walk *walk, uintptr_t interpreter, bool is_innermost)
{
    const struct tcl_layout *layout = walk->view.tcl->layout;
    struct foreign_reader *reader = &walk->view.reader;
    walk->view.interpreter = interpreter;
    walk->view.handle = foreign_word(reader, interpreter + layout->handle);
    walk->is_newest = is_innermost;
    uintptr_t root = foreign_word(reader, interpreter + layout->root_frame);
    uintptr_t environment = foreign_word(reader, interpreter + layout->environment);
    struct chain from = {foreign_word(reader, interpreter + layout->frame), foreign_word(reader, interpreter + layout->command_frame)};
    struct tcl_place place = {0};
    for (int i = 0; i < MOST_COROUTINES; i++) {
        if (!read_chain(walk, from, root, &place)) {
            tcl_trial_found_other(&walk->view);
            return;
        }
        uintptr_t coroutine = environment == 0 ? 0 : foreign_word(reader, environment + layout->environment_coroutine);
        if (coroutine == 0)
            break;
        from.frame = foreign_word(reader, coroutine + layout->coroutine_frame);
        from.command = foreign_word(reader, coroutine + layout->coroutine_command_frame);
        environment = foreign_word(reader, coroutine + layout->coroutine_environment);
    }
    put(walk, tcl_names_top_level(&walk->view, &place));
}

/* ---- walks ---- */

static void refuse(const struct tcl *tcl)
{
    static const char note[] = "note: procedures of Tcl are not shown: its interpreters are not what this version has";
    static const char trial[] = "note: procedures of Tcl are not shown: this version is not known, and was not found to be like known ones";
    uint64_t now = tcl->hooks->now_ns();
    tcl->hooks->marker(tcl->heap, tcl->is_known ? note : trial, now, now);
}

/* Whether the walk only checks; what it reads is then of no use. */
static bool is_on_trial(const struct tcl *tcl)
{
    return !tcl->is_known && tcl_trial_verdict() != TCL_ACCEPTED;
}

static void read_all(struct walk *walk)
{
    struct tcl_interpreters interpreters;
    if (tcl_blocks_is_pool(walk->view.tcl)) {
        put(walk, tcl_names_pool(walk->view.tcl));
        return;
    }
    tcl_interpreters_find(&walk->view, &walk->walker->looked, &interpreters);
    if (interpreters.count == 0 && interpreters.is_other_layout && !atomic_load_explicit(&is_believed, memory_order_relaxed) &&
        atomic_fetch_add_explicit(&tries, 1, memory_order_relaxed) + 1 == TRIES)
        refuse(walk->view.tcl);
    for (size_t i = 0; i < interpreters.count; i++)
        read_interpreter(walk, interpreters.found[i], i == 0);
    if (walk->view.is_trial && interpreters.count > 0 && tcl_trial_ends_walk())
        refuse(walk->view.tcl);
    if (walk->count > 0)
        atomic_store_explicit(&is_believed, true, memory_order_relaxed);
}

size_t tcl_frames_walk(void *user, allocsample_frame *frames, size_t capacity)
{
    (void)user;
    const struct tcl *tcl = atomic_load_explicit(&current, memory_order_acquire);
    if (tcl == NULL || atomic_load_explicit(&tries, memory_order_relaxed) >= TRIES ||
        (!tcl->is_known && tcl_trial_verdict() == TCL_REFUSED))
        return 0;
    struct walk walk = {.view = {.tcl = tcl, .is_trial = is_on_trial(tcl)}, .frames = frames, .capacity = capacity};
    struct walker *walker = walkers_begin(&walkers, &walk.view.reader);
    if (walker == NULL)
        return 0;
    walk.walker = (struct tcl_walker *)walker;
    read_all(&walk);
    walkers_end(walker);
    return walk.count;
}

/* ---- start ---- */

bool tcl_frames_make(void)
{
    return walkers_make(&walkers, WALKERS, sizeof(struct tcl_walker)) && tcl_names_make();
}

void tcl_frames_are_of(const struct tcl *tcl)
{
    atomic_store_explicit(&current, tcl, memory_order_release);
}

void tcl_frames_after_fork_in_child(void)
{
    walkers_after_fork_in_child(&walkers);
    tcl_names_after_fork_in_child();
}
