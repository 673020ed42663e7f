/* Joins a process that is PHP 7.4 or 8: its heap (heap.c), its frames (frames.c), its requests and collections of cycles.
 *
 * PHP calls a hook at the end of its start. There the functions that the module `standard`, which every PHP has, runs at the begin
 * and the end of each request are replaced by ours, which call them. At an attach the same is done by another thread: then it
 * holds from the next request on. The one that is running, which in a program of the command line is the only one, is joined when
 * PHP's thread comes by: as soon as it looks for interrupts (interrupts.c), in other versions at the next call of a method or a
 * callback, or at the next collection. */
#define _GNU_SOURCE
#include "php.h"
#include "kit/resume.h"
#include "kit/symbols.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { STATISTIC_CYCLES = 1, STATISTIC_PEAK = 2 };

/* The beginning of zend_module_entry, which all extensions have compiled in. */
struct module {
    uint16_t size;
    uint32_t interface;
    uint8_t is_for_debugging, is_for_threads;
    const void *settings, *dependencies;
    const char *name;
    const void *functions;
    int (*start)(int, int), (*stop)(int, int);
    int (*request_begins)(int, int), (*request_ends)(int, int);
};
_Static_assert(offsetof(struct module, request_ends) == 72, "as in PHP's header zend_modules.h");

/* The beginning of sapi_globals. */
struct request {
    const void *server;
    const char *method, *query, *cookies;
    int64_t length;
    const char *file, *path;
};

static struct php_symbols php;
static const allocsample_hooks *hooks;
static allocsample_heap *heap;
static _Atomic(bool) is_left; /* by a detach */
static _Atomic(bool) is_wanted; /* by an attach, at the next opportunity on PHP's thread */
static uint64_t begin_ns, collections;
static bool is_program; /* of the command line: it ends with its only request */
static int (*next_request_begins)(int, int), (*next_request_ends)(int, int);
static int (*next_post_startup)(void), (*next_collect_cycles)(void);
static void (*next_execute)(zend_execute_data *);
static void (*next_collect_memory)(zend_execute_data *, void *result);

static bool is_sampled(void)
{
    allocsample_counters counters = {.size = sizeof counters};
    return hooks->counters(heap, &counters) == ALLOCSAMPLE_OK && counters.is_on != 0 &&
           !atomic_load_explicit(&is_left, memory_order_relaxed);
}

/* ---- requests ---- */

static void replace_collect_memory(void);

/* On PHP's thread, when it has its functions. */
static void enter(void)
{
    is_program = strcmp(*php.server, "cli") == 0;
    php_frames_begin();
    replace_collect_memory();
    if (is_sampled())
        php_heap_enter();
}

static int request_begins(int type, int number)
{
    begin_ns = hooks->now_ns();
    enter();
    return next_request_begins(type, number);
}

/* "GET /path", or the program's file. The path ends where a query begins, which may be nobody's business. */
static void name_request(char *name, size_t room)
{
    const struct request *request = (const struct request *)php.request;
    if (request->method != NULL && request->path != NULL)
        snprintf(name, room, "%s %.*s", request->method, (int)strcspn(request->path, "?"), request->path);
    else
        snprintf(name, room, "%s", request->file == NULL ? "request" : request->file);
}

/* A server may answer thousands of requests a second. Only requests with a sample get a marker. */
static int request_ends(int type, int number)
{
    char name[256];
    size_t peak = php.peak(false);
    if (php_heap_leave(is_program)) {
        name_request(name, sizeof name);
        hooks->value(heap, STATISTIC_PEAK, peak);
        if (begin_ns != 0)
            hooks->marker(heap, name, begin_ns, hooks->now_ns());
    }
    return next_request_ends(type, number);
}

/* The entry of a module that has started; NULL: PHP has not, or it is not what we know. */
static struct module *find_standard(void)
{
    static const char name[] = "standard";
    struct module *const *value = php.find_in_table(php.modules, name, sizeof name - 1);
    struct module *module = value == NULL ? NULL : *value;
    bool is_known = module != NULL && module->size >= sizeof *module && module->size < 512 && module->is_for_debugging == 0 &&
                    module->is_for_threads == 0 && module->name != NULL && strcmp(module->name, name) == 0 &&
                    module->request_begins != NULL && module->request_ends != NULL;
    return is_known ? module : NULL;
}

/* ---- collections ---- */

static int collect_cycles(void)
{
    php_come_by();
    uint64_t begin = hooks->now_ns();
    int count = next_collect_cycles();
    uint64_t values[] = {STATISTIC_CYCLES, count > 0 ? (uint64_t)count : 0};
    allocsample_gc gc = {
        .size = sizeof gc,
        .kind = ALLOCSAMPLE_MAJOR,
        .id = ++collections,
        .begin_ns = begin,
        .end_ns = hooks->now_ns(),
        .statistics = 1,
        .values = values,
    };
    if (is_sampled())
        hooks->gc(heap, &gc);
    return count;
}

/* The script's function gc_mem_caches. It gives back nothing of a heap that has handlers. */
static void collect_memory(zend_execute_data *frame, void *result)
{
    bool is_paused = php_heap_pause();
    next_collect_memory(frame, result);
    if (is_paused)
        php_heap_go_on();
}

/* The address of its code is the only one in its description. */
static void replace_collect_memory(void)
{
    static const char name[] = "gc_mem_caches";
    uintptr_t *words = next_collect_memory == NULL ? php.find_function(name, sizeof name - 1) : NULL, start, end;
    void (*ours)(zend_execute_data *, void *) = collect_memory;
    if (words == NULL || !symbols_code_of(php.execute, &start, &end))
        return;
    for (size_t i = 3; i < 16; i++) {
        if (words[i] < start || words[i] >= end)
            continue;
        memcpy(&next_collect_memory, &words[i], sizeof next_collect_memory);
        memcpy(&words[i], &ours, sizeof ours);
        return;
    }
}

/* ---- late ---- */

void php_come_by(void)
{
    if (UNLIKELY(atomic_load_explicit(&is_wanted, memory_order_relaxed)) &&
        atomic_exchange_explicit(&is_wanted, false, memory_order_relaxed))
        enter();
}

/* In place of PHP's function for a call. */
static void execute(zend_execute_data *frame)
{
    if (*php.execute_hook == execute)
        *php.execute_hook = next_execute;
    php_come_by();
    next_execute(frame);
}

/* Any thread. */
static void want_to_enter(void)
{
    atomic_store_explicit(&is_wanted, true, memory_order_relaxed);
    php_interrupt();
    if (*php.execute_hook == execute || *php.execute_hook == NULL)
        return;
    next_execute = *php.execute_hook;
    *php.execute_hook = execute;
}

/* ---- start ---- */

static void watch(void)
{
    struct module *standard = find_standard();
    if (standard == NULL || standard->request_begins == request_begins)
        return;
    php_interrupts_prepare(&php);
    next_request_begins = standard->request_begins;
    next_request_ends = standard->request_ends;
    next_collect_cycles = *php.collect_cycles_hook;
    standard->request_ends = request_ends;
    standard->request_begins = request_begins;
    if (next_collect_cycles != NULL)
        *php.collect_cycles_hook = collect_cycles;
}

static int post_startup(void)
{
    watch();
    return next_post_startup == NULL ? 0 : next_post_startup();
}

static bool find_functions(void)
{
    static const struct symbol symbols[] = {
        {&php.set_handlers, "zend_mm_set_custom_handlers"},
        {&php.get_handlers, "zend_mm_get_custom_handlers"},
        {&php.heap, "zend_mm_get_heap"},
        {&php.allocate, "_zend_mm_alloc"},
        {&php.free, "_zend_mm_free"},
        {&php.reallocate, "_zend_mm_realloc"},
        {&php.block_size, "_zend_mm_block_size"},
        {&php.peak, "zend_memory_peak_usage"},
        {&php.emalloc_56, "_emalloc_56"},
        {&php.executed_file, "zend_get_executed_filename_ex"},
        {&php.executed_line, "zend_get_executed_lineno"},
        {&php.active_function, "get_active_function_name"},
        {&php.find_in_table, "zend_hash_str_find"},
        {&php.find_function, "zend_fetch_function_str"},
        {&php.execute, "execute_ex"},
        {&php.execute_hook, "zend_execute_ex"},
        {&php.post_startup_hook, "zend_post_startup_cb"},
        {&php.collect_cycles_hook, "gc_collect_cycles"},
        {&php.interrupt_hook, "zend_interrupt_function"},
        {&php.version, "get_zend_version"},
        {&php.modules, "module_registry"},
        {&php.executor, "executor_globals"},
        {&php.request, "sapi_globals"},
        {&php.server, "sapi_module"},
    };
    return symbols_find_all(symbols, sizeof symbols / sizeof symbols[0], "php");
}

/* A process that waits to be told allocates as if we were not there. */
static void on_change(void *user)
{
    (void)user;
    if (heap != NULL && next_request_begins != NULL && is_sampled())
        want_to_enter();
}

static bool make_heap(void)
{
    hooks = allocsample_get_hooks(ALLOCSAMPLE_VERSION);
    if (hooks == NULL || !find_functions())
        return false;
    bool has_frames = php_frames_prepare(&php, hooks);
    allocsample_heap_description description = {
        .size = sizeof description,
        .kind = ALLOCSAMPLE_MALLOC,
        .name = "php",
        .flags = ALLOCSAMPLE_WALK_EVERYWHERE | ALLOCSAMPLE_WHOLE_CODE,
        .walk = has_frames ? php_frames_walk : NULL,
        .on_change = on_change,
    };
    heap = hooks->heap_register(&description);
    if (heap == NULL || !php_heap_prepare(&php, hooks, heap))
        return false;
    php_frames_belong_to(heap);
    hooks->define_statistic(heap, STATISTIC_CYCLES, "collected", "objects");
    hooks->define_statistic(heap, STATISTIC_PEAK, "peak of a request", "bytes");
    uintptr_t start, end;
    if (has_frames && symbols_code_of(php.execute, &start, &end))
        hooks->interpreter_range(heap, start, end);
    return true;
}

static void join(void)
{
    if (dlsym(RTLD_DEFAULT, "tsrm_get_ls_cache") != NULL) {
        shim_services.decline("php", "builds with threads (ZTS)", "are not supported");
        return;
    }
    if (!make_heap())
        return;
    next_post_startup = *php.post_startup_hook;
    *php.post_startup_hook = post_startup;
}

static void attach(void)
{
    if (heap == NULL && (dlsym(RTLD_DEFAULT, "tsrm_get_ls_cache") != NULL || !make_heap()))
        return;
    resume_heap(hooks, heap);
    atomic_store_explicit(&is_left, false, memory_order_relaxed);
    watch();
    if (next_request_begins != NULL)
        want_to_enter();
}

/* Handlers that are in place stay until the request ends, and only pass on. */
static void detach(void)
{
    if (heap == NULL)
        return;
    hooks->control(heap, ALLOCSAMPLE_STOP, 0);
    atomic_store_explicit(&is_left, true, memory_order_relaxed);
    atomic_store_explicit(&is_wanted, false, memory_order_relaxed);
}

const struct bridge bridge_php = {
    .name = "php",
    .runtime_symbol = "zend_mm_set_custom_handlers",
    .join = join,
    .attach = attach,
    .detach = detach,
    .after_fork_in_child = php_frames_after_fork_in_child,
};
