// Behaviour: for every function of the hook ABI a child that was forked by a system call, past libc, whose first call is that one, with
// a heap of each kind. The ring of the parent's recording is not there. Children end with status 0.
#include "../../c_shim/include/allocsample.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NURSERY = 1 << 16, BATCH = 8 };

static const allocsample_hooks *agent;
static allocsample_heap *heap, *freed_heap;
static allocsample_nursery nursery;
static char memory[NURSERY];
static uintptr_t place;

static uintptr_t at(uintptr_t offset) { return (uintptr_t)memory + offset; }
static const allocsample_frame frame = {.function = 1};

static void call_heap_register(void)
{
    allocsample_heap_description more = {.size = sizeof more, .kind = ALLOCSAMPLE_NURSERY, .name = "more"};
    agent->heap_register(&more);
}
static void call_heap_unregister(void) { agent->heap_unregister(heap); }
static void call_thread_name(void) { agent->thread_name("child"); }
static void call_nursery_begin(void) { agent->nursery_begin(heap, &nursery, at(place), at(NURSERY)); }
static void call_nursery_point(void) { agent->nursery_point(heap, &nursery, at(place), 48, at(NURSERY), 1); }
static void call_nursery_sync(void) { agent->nursery_sync(heap, &nursery, at(place), at(0), at(NURSERY)); }
static void call_nursery_enable(void) { agent->nursery_enable(heap, &nursery, at(place), at(NURSERY), 0); }
static void call_nursery_end(void) { agent->nursery_end(heap, &nursery, at(place)); }
static void call_alloc(void) { agent->alloc(heap, &nursery, 0x1000, 4096, 1, at(place), NULL); }
static void call_freed(void) { agent->freed(freed_heap, 0x2000); }
static void call_moved(void) { agent->moved(freed_heap, 0x2000, 0x3000); }
static void call_pending(uint32_t kind)
{
    allocsample_pending samples[BATCH];
    allocsample_resolution answers[BATCH];
    uint64_t cursor = 0;
    size_t count = agent->pending(heap, kind == ALLOCSAMPLE_MINOR ? &nursery : NULL, kind, samples, BATCH, &cursor);
    for (size_t i = 0; i < count; i++)
        answers[i] = (allocsample_resolution){.id = samples[i].id, .slot = samples[i].slot, .fate = ALLOCSAMPLE_DEAD};
    agent->resolve(heap, kind == ALLOCSAMPLE_MINOR ? &nursery : NULL, kind, answers, count, 1);
}
static void call_pending_young(void) { call_pending(ALLOCSAMPLE_MINOR); }
static void call_pending_old(void) { call_pending(ALLOCSAMPLE_MAJOR); }
static void call_resolve(void)
{
    allocsample_resolution answer = {.id = 0, .slot = 0, .fate = ALLOCSAMPLE_DEAD};
    agent->resolve(heap, NULL, ALLOCSAMPLE_MAJOR, &answer, 1, 1);
}
static void call_define_type(void) { agent->define_type(heap, 2, "Other", ""); }
static void call_define_function(void) { agent->define_function(heap, 2, "other", "file", 1); }
static void call_define_statistic(void) { agent->define_statistic(heap, 1, "used", "bytes"); }
static void call_define_inlined(void) { agent->define_inlined(heap, 3, &frame, 1); }
static void call_interpreter_range(void) { agent->interpreter_range(heap, 0x5000, 0x6000); }
static void call_code_add(void) { agent->code_add(heap, 0x7000, 0x8000, 1); }
static void call_code_move(void) { agent->code_move(heap, 0x7000, 0x9000); }
static void call_code_remove(void) { agent->code_remove(heap, 0x7000); }
static void call_gc(void)
{
    allocsample_gc gc = {.size = sizeof gc, .kind = ALLOCSAMPLE_MAJOR, .id = 1, .begin_ns = 1, .end_ns = agent->now_ns()};
    agent->gc(heap, &gc);
}
static void call_phase(void) { agent->phase(heap, "phase"); }
static void call_marker(void) { agent->marker(heap, "marker", agent->now_ns(), agent->now_ns()); }
static void call_value(void) { agent->value(heap, 1, 1); }
static void call_control(void) { agent->control(heap, ALLOCSAMPLE_DISCARD, 0); }
static void call_control_interval(void) { agent->control(heap, ALLOCSAMPLE_SET_INTERVAL, 2); }
static void call_counters(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    agent->counters(heap, &counters);
}
static void call_sampled(void) { agent->sampled(freed_heap, 0x2000, 64, 1, &frame, 1); }
static void call_sampled_at(void) { agent->sampled_at(freed_heap, 0x2000, 64, 1, &frame, 1, 1); }
static void call_sampled_at_nothing(void) { agent->sampled_at(freed_heap, 0, 0, 0, NULL, 0, 0); }
static void call_typed(void) { agent->typed(heap, 1, 1); }
static void call_thread_enable(void) { agent->thread_enable(0); }
static void call_process_control(void) { agent->process_control(ALLOCSAMPLE_SET_INTERVAL, 4096); }
static void call_process_status(void)
{
    allocsample_status status = {.size = sizeof status};
    agent->process_status(&status);
}
static void call_thread_select(void) { agent->thread_select((uint32_t)getpid(), 1); }
static void call_process_filter(void)
{
    allocsample_filter filter = {.size = sizeof filter};
    agent->process_filter(&filter);
}

static void (*const calls[])(void) = {
    call_heap_register,     call_heap_unregister,  call_thread_name,       call_nursery_begin,      call_nursery_point,
    call_nursery_sync,      call_nursery_enable,   call_nursery_end,       call_alloc,              call_freed,
    call_moved,             call_pending_young,    call_pending_old,       call_resolve,            call_define_type,
    call_define_function,   call_define_statistic, call_define_inlined,    call_interpreter_range,  call_code_add,
    call_code_move,         call_code_remove,      call_gc,                call_phase,              call_marker,
    call_value,             call_control,          call_control_interval,  call_counters,           call_sampled,
    call_sampled_at,        call_sampled_at_nothing, call_typed,           call_thread_enable,      call_process_control,
    call_process_status,    call_thread_select,    call_process_filter,
};

static int in_child(void (*call)(void))
{
    int status = -1;
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        call();
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status;
}

int main(int argc, char **argv)
{
    (void)argv;
    agent = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (agent == NULL)
        return 0;
    allocsample_heap_description description = {.size = sizeof description, .kind = ALLOCSAMPLE_NURSERY, .name = "raw"};
    heap = agent->heap_register(&description);
    allocsample_heap_description by_address = {.size = sizeof by_address, .kind = ALLOCSAMPLE_ALLOCATOR, .name = "freed"};
    freed_heap = agent->heap_register(&by_address);
    agent->define_type(heap, 1, "Object", "");
    agent->define_function(heap, 1, "function", "file", 1);
    agent->nursery_begin(heap, &nursery, at(0), at(NURSERY));
    for (int i = 0; i < 4; i++, place += 64)
        agent->nursery_point(heap, &nursery, at(place), 64, at(NURSERY), 1);
    agent->sampled(freed_heap, 0x2000, 64, 1, &frame, 1);
    free(malloc(1000));
    /* Sampling of the heap is off: it is then that it looks for requests. */
    if (argc > 1)
        agent->control(heap, ALLOCSAMPLE_STOP, 0);
    int failed = 0;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        int status = in_child(calls[i]);
        if (status != 0) {
            fprintf(stderr, "call %zu: status %#x\n", i, status);
            failed++;
        }
    }
    return failed == 0 ? 0 : 1;
}
