/* Whether a Tcl of an unknown version keeps its stacks as the newest known one of the same major version.
 *
 * Patch levels have always had the same layout. Another version may have moved anything (9.1 has lines of another size than 9.0), so that
 * nothing is shown before it was seen to be right on the program's own stacks: walks read them as the older layout says, and look at what
 * cannot be so by chance. A call frame of a procedure leads to the procedure, that to its interpreter and to a command with a name, and
 * the command to a namespace of that interpreter. Chains of call frames end in the root frame. A command that byte code calls leads to byte code
 * of the interpreter, to a position in it, and by the table of lines to a file and a line. */
#define _GNU_SOURCE
#include "tcl.h"

/* Of each, before the layout is accepted. */
#define ENOUGH 100
/* Walks that may meet something else, for each hundred that do not: malloc may be called while Tcl changes what they read. */
#define SPARED 2
/* Walks after which a program without procedures or files has had its trial. */
#define MOST_WALKS 20000

static struct {
    _Atomic(uint32_t) walks, procedures, places, others;
    _Atomic(enum tcl_verdict) verdict;
} trial;

static void count(const struct tcl_view *view, _Atomic(uint32_t) *what)
{
    if (view->is_trial)
        atomic_fetch_add_explicit(what, 1, memory_order_relaxed);
}

void tcl_trial_found_procedure(const struct tcl_view *view)
{
    count(view, &trial.procedures);
}

void tcl_trial_found_place(const struct tcl_view *view)
{
    count(view, &trial.places);
}

void tcl_trial_found_other(const struct tcl_view *view)
{
    count(view, &trial.others);
}

bool tcl_trial_ends_walk(void)
{
    uint32_t walks = atomic_fetch_add_explicit(&trial.walks, 1, memory_order_relaxed) + 1;
    uint32_t others = atomic_load_explicit(&trial.others, memory_order_relaxed);
    enum tcl_verdict before = TCL_UNDECIDED, after = TCL_UNDECIDED;
    if (others > SPARED * (1 + walks / 100) || walks == MOST_WALKS)
        after = TCL_REFUSED;
    else if (walks >= ENOUGH && atomic_load_explicit(&trial.procedures, memory_order_relaxed) >= ENOUGH &&
             atomic_load_explicit(&trial.places, memory_order_relaxed) >= ENOUGH)
        after = TCL_ACCEPTED;
    return after != TCL_UNDECIDED && atomic_compare_exchange_strong(&trial.verdict, &before, after) && after == TCL_REFUSED;
}

enum tcl_verdict tcl_trial_verdict(void)
{
    return atomic_load_explicit(&trial.verdict, memory_order_relaxed);
}
