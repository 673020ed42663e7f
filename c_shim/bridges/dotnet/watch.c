/* Deaths of .NET's objects: each sample has a weak handle, which the collector clears when the object is gone. */
#define _GNU_SOURCE
#include "dotnet.h"

/* Large and pinned objects are as old as those of generation 2. */
enum { OLD = 2 };

static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static clr_object info;
static struct watches watches;

struct watch *dotnet_watch_take(void)
{
    return watches_take(&watches);
}

uintptr_t dotnet_watch_key(const struct watch *watch)
{
    return watches_key(&watches, watch);
}

void dotnet_watch_begin(struct watch *watch, uintptr_t object)
{
    uintptr_t handle = 0;
    if (watch == NULL)
        return;
    /* Without a handle the watch stays taken, and the sample counts as live for ever. */
    shim_mute();
    if (CLR(info, INFO_CREATE_HANDLE, (clr_object, uintptr_t, uint32_t, uintptr_t *), object, HANDLE_WEAK, &handle) >= 0 &&
        handle != 0)
        watches_begin(watch, handle);
    shim_unmute();
}

void dotnet_watch_give_back(struct watch *watch)
{
    watches_give_back(&watches, watch);
}

static uint32_t generation_now(uintptr_t object, uint32_t before)
{
    struct clr_range range = {0};
    if (CLR(info, INFO_OBJECT_GENERATION, (clr_object, uintptr_t, struct clr_range *), object, &range) < 0)
        return before + 1;
    dotnet_ranges_add(&range);
    return range.generation < OLD ? range.generation : OLD;
}

static void look_at(struct watch *watch, uint32_t generation)
{
    uintptr_t object = 0;
    if (CLR(info, INFO_OBJECT_OF_HANDLE, (clr_object, uintptr_t, uintptr_t *), watch->handle, &object) < 0)
        return;
    if (object == 0) {
        hooks->freed(heap, dotnet_watch_key(watch));
        CLR(info, INFO_DESTROY_HANDLE, (clr_object, uintptr_t), watch->handle);
        dotnet_watch_give_back(watch);
    } else if (generation != OLD) {
        watches_move(watch, generation_now(object, generation));
    }
}

void dotnet_watch_after_collection(uint32_t oldest)
{
    watches_each(&watches, oldest < OLD ? oldest : OLD, look_at);
}

bool dotnet_watch_prepare(const allocsample_hooks *the_hooks, allocsample_heap *the_heap, clr_object the_info)
{
    hooks = the_hooks;
    heap = the_heap;
    info = the_info;
    return watches_make(&watches);
}
