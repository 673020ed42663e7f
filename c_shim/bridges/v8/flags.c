/* V8's flags, by which it keeps objects and functions apart.
 *
 * They are set before V8 starts or, as `v8.setFlagsFromString` does it, on an isolate's thread after an attach. An older V8 would
 * complain about unknown flags. */
#define _GNU_SOURCE
#include "bridge.h"
#include "v8.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic(bool) are_flags_changed;

static bool is_in_file(const char *path, const char *text)
{
    char bytes[4096];
    size_t length = strlen(text), kept = 0;
    bool is_found = false;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    while (file >= 0 && !is_found && (got = read(file, bytes + kept, sizeof bytes - kept)) > 0) {
        size_t filled = kept + (size_t)got;
        is_found = memmem(bytes, filled, text, length) != NULL;
        /* The end of the buffer is kept: it may be the beginning of `text`. */
        kept = filled < length ? filled : length - 1;
        memmove(bytes, bytes + filled - kept, kept);
    }
    if (file >= 0)
        close(file);
    return is_found;
}

bool v8_has_option(const char *option)
{
    return is_in_file("/proc/self/cmdline", option) || is_in_file("/proc/self/environ", option);
}

/* The number before the first dot of V8's version. */
static int major_version(void)
{
    const char *version = v8.version();
    return version == NULL ? 0 : atoi(version);
}

bool v8_inlining_is_unknown(void)
{
    return major_version() < 12;
}

bool v8_draws_too_few(void)
{
    return major_version() < 12;
}

/* V8's compilers fold allocations that follow one another into one. V8's profiler sees a single object then, the first of them, and
 * takes all for dead when that one dies. And its CPU profiler, which names inlined functions, knows none of those that its second
 * compiler, Maglev, has inlined: it inlines none, until the first one takes over. V8 11 (Node.js 20), whose second compiler is off, does
 * not even know those of the first one. An older V8 would complain about unknown flags. */
void v8_flags_change(void)
{
    if (atomic_exchange_explicit(&are_flags_changed, true, memory_order_relaxed))
        return;
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    v8.set_flags("--no-turbo-allocation-folding");
    if (shim_services.is_asked_for(BRIDGE_NAMED))
        v8.set_flags(v8_inlining_is_unknown() ? "--no-turbo-inlining" : "--no-maglev-inlining");
    if (major_version() >= 13)
        v8.set_flags("--maglev-allocation-folding=0");
    shim_quiet_end(before);
}

/* After a detach. What Maglev folds by default is a number that is known up to V8 14. */
void v8_flags_change_back(void)
{
    if (!atomic_exchange_explicit(&are_flags_changed, false, memory_order_relaxed))
        return;
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    v8.set_flags("--turbo-allocation-folding");
    if (!v8_has_option(v8_inlining_is_unknown() ? "turbo-inlining" : "maglev-inlining"))
        v8.set_flags(v8_inlining_is_unknown() ? "--turbo-inlining" : "--maglev-inlining");
    if (major_version() == 13 || major_version() == 14)
        v8.set_flags(major_version() == 13 ? "--maglev-allocation-folding=1" : "--maglev-allocation-folding=2");
    shim_quiet_end(before);
}

/* V8's profiler walks machine frames, and knows nothing of the functions that were inlined into them. */
void v8_flags_stop_inlining(void)
{
    v8.set_flags("--no-turbo-inlining");
    /* Node.js 20 has V8 11.3, whose second compiler is off. Older ones would complain about the flag. */
    if (major_version() >= 12)
        v8.set_flags("--no-maglev-inlining");
}

/* Node.js keeps V8's flags open for `v8.setFlagsFromString`. Other programs may have them closed, and V8 then ends the process if one
 * is changed. Without the numbers of scripts it is not known which code is from before. */
bool v8_flags_are_open(void)
{
    return v8.script_id != NULL && !v8_has_option("allocation-folding") && is_in_file("/proc/self/exe", "_ZN4node5StartEiPPc");
}
