/* See registry.h. */
#define _GNU_SOURCE
#include "registry.h"
#include "absence.h"
#include "bridge.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

static const struct bridge *const bridges[] = {
#define BRIDGE(NAME) &bridge_##NAME,
#include "list.def"
#undef BRIDGE
};
#define BRIDGES (sizeof bridges / sizeof bridges[0])

_Static_assert(BRIDGES <= ABSENCE_SYMBOLS, "a bit for each");

/* What is asked for now. */
static _Atomic(uint32_t) groups_now;

bool bridges_are_asked_for(uint32_t group)
{
    return (atomic_load_explicit(&groups_now, memory_order_relaxed) >> group & 1) != 0;
}

static bool is_wanted(const struct bridge *bridge, uint32_t groups)
{
    return (groups >> bridge->group & 1) != 0;
}

/* Most processes are none of these runtimes: each bridge costs them one look into the objects' filters. */
void bridges_join(uint32_t groups)
{
    const char *symbols[BRIDGES];
    atomic_fetch_or(&groups_now, groups);
    for (size_t i = 0; i < BRIDGES; i++)
        symbols[i] = is_wanted(bridges[i], groups) ? bridges[i]->runtime_symbol : NULL;
    uint64_t may_exist = absence_exceptions(symbols, BRIDGES);
    for (size_t i = 0; i < BRIDGES; i++) {
        const struct bridge *bridge = bridges[i];
        if (is_wanted(bridge, groups) &&
            (bridge->runtime_symbol == NULL ||
             ((may_exist >> i & 1) != 0 && dlsym(RTLD_DEFAULT, bridge->runtime_symbol) != NULL)))
            bridge->join();
    }
}

/* ---- those that declined ---- */

#define MOST_DECLINED 32

static struct bridge_declined declined[MOST_DECLINED];
static _Atomic(bool) is_written[MOST_DECLINED];
static _Atomic(size_t) declined_taken;

void bridges_decline(const char *heap, const char *what, const char *why)
{
    size_t index = atomic_fetch_add_explicit(&declined_taken, 1, memory_order_relaxed);
    if (index >= MOST_DECLINED)
        return;
    declined[index] = (struct bridge_declined){heap, what, why};
    /* Release: pairs with the load in bridges_declined. */
    atomic_store_explicit(&is_written[index], true, memory_order_release);
}

bool bridges_declined(size_t index, struct bridge_declined *found)
{
    if (index >= MOST_DECLINED || !atomic_load_explicit(&is_written[index], memory_order_acquire))
        return false;
    *found = declined[index];
    return true;
}

/* What another thread had not finished would hide what comes later. */
static void declined_after_fork_in_child(void)
{
    size_t count = 0;
    while (count < MOST_DECLINED && atomic_load(&is_written[count]))
        count++;
    for (size_t i = count; i < MOST_DECLINED; i++)
        atomic_store(&is_written[i], false);
    atomic_store(&declined_taken, count);
}

/* ---- while the program runs ---- */

/* Who looks at objects tells so, and then asks whether anybody unloads one; who unloads does it the other way round. */
static _Atomic(bool) is_looking;
static _Atomic(uint32_t) unloading;
static bool begin_looking(void)
{
    if (atomic_exchange(&is_looking, true))
        return false;
    if (atomic_load(&unloading) == 0)
        return true;
    atomic_store(&is_looking, false);
    return false;
}

static void wait_to_look(void)
{
    while (!begin_looking())
        sched_yield();
}

static void end_looking(void)
{
    atomic_store(&is_looking, false);
}

void bridges_attach(uint32_t groups)
{
    wait_to_look();
    atomic_store(&groups_now, groups);
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->attach != NULL && is_wanted(bridges[i], groups))
            bridges[i]->attach();
    end_looking();
}

void bridges_detach(void)
{
    wait_to_look();
    atomic_store(&groups_now, 0);
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->detach != NULL)
            bridges[i]->detach();
    end_looking();
}

bool bridges_look(uint64_t object)
{
    if (!begin_looking())
        return false;
    bool is_done = true;
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->look != NULL && is_wanted(bridges[i], atomic_load(&groups_now)))
            is_done &= bridges[i]->look((uintptr_t)object);
    end_looking();
    return is_done;
}

bool bridges_await(const char *path, size_t length)
{
    char file[64];
    const char *slash = memrchr(path, '/', length);
    size_t folder = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    size_t bytes = length - folder < sizeof file ? length - folder : sizeof file - 1;
    memcpy(file, path + folder, bytes);
    file[bytes] = 0;
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->awaits != NULL && is_wanted(bridges[i], atomic_load(&groups_now)) && bridges[i]->awaits(file))
            return true;
    return false;
}

_Static_assert(sizeof(struct bridge_own) == 48 && offsetof(struct bridge_own, bytes) == 8,
               "src/preload/start.rs mirrors this layout");

size_t bridges_count(struct bridge_own *own, size_t room)
{
    size_t count = 0;
    if (!begin_looking())
        return 0;
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->count != NULL && is_wanted(bridges[i], atomic_load(&groups_now)))
            count += bridges[i]->count(own + count, room - count);
    end_looking();
    return count;
}

/* May be nested: a destructor may close other objects. A constructor may, too, and holds the loader's lock then, which an attach
 * takes: so nobody waits for ever. */
void bridges_before_dlclose(void)
{
    atomic_fetch_add(&unloading, 1);
    int saved_errno = errno;
    for (int turn = 0; turn < 20000 && atomic_load(&is_looking); turn++)
        usleep(100);
    errno = saved_errno;
}

void bridges_after_dlclose(void)
{
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->after_dlclose != NULL)
            bridges[i]->after_dlclose();
    /* A forked child has forgotten those of its parent. */
    if (atomic_load(&unloading) > 0)
        atomic_fetch_sub(&unloading, 1);
}

void bridges_after_fork_in_child(void)
{
    atomic_store(&is_looking, false);
    atomic_store(&unloading, 0);
    declined_after_fork_in_child();
    for (size_t i = 0; i < BRIDGES; i++)
        if (bridges[i]->after_fork_in_child != NULL)
            bridges[i]->after_fork_in_child();
}

bool bridges_have_scanning_collector(void)
{
    const char *symbols[BRIDGES];
    for (size_t i = 0; i < BRIDGES; i++)
        symbols[i] = bridges[i]->scanning_collector_symbol;
    for (uint64_t left = absence_exceptions(symbols, BRIDGES); left != 0; left &= left - 1)
        if (dlsym(RTLD_DEFAULT, symbols[__builtin_ctzll(left)]) != NULL)
            return true;
    return false;
}
