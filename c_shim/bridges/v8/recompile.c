/* Has V8 throw all optimized code of an isolate away, so that what runs often is compiled again, with its objects apart.
 *
 * No public function of V8 does only that. Precise coverage, which an inspector's session can ask for, does it first of all, as
 * optimized code would not be counted. So a session is opened, coverage is started and stopped at once, and the session is closed: in
 * a microtask, where the program expects JavaScript to run. V8 visits every object of the heap meanwhile, as it does for a full
 * collection: a heap that is too large for that is left as it is.
 *
 * Nothing is done where somebody else may be using coverage, or is connected to the inspector. */
#define _GNU_SOURCE
#include "kit/symbols.h"
#include "v8.h"

#include <dlfcn.h>
#include <string.h>

/* v8::NewStringType::kNormal */
enum { NORMAL_STRING = 0 };

static struct {
    void (*enqueue_microtask)(void *isolate, void (*callback)(void *data), void *data);
    const void *(*new_string)(void *isolate, const char *text, int type, int length);
    const void *(*compile)(void *context, const void *source, const void *origin); /* v8::Script */
    const void *(*run)(const void *script, void *context);
    bool (*is_truthy)(const void *value, void *isolate);
    bool are_found;
} functions;

/* The value of the script is whether it was done. */
static const char script[] =
    "(() => {\n"
    "  try {\n"
    "    const { NODE_V8_COVERAGE, JEST_WORKER_ID, VITEST } = process.env;\n"
    "    if (NODE_V8_COVERAGE || JEST_WORKER_ID || VITEST) return false;\n"
    "    const inspector = process.getBuiltinModule('inspector');\n"
    "    if (inspector.url() !== undefined) return false;\n"
    "    const session = new inspector.Session();\n"
    "    session.connect();\n"
    "    let isDone = true;\n"
    "    const note = (error) => { if (error) isDone = false; };\n"
    "    session.post('Profiler.enable', note);\n"
    "    session.post('Profiler.startPreciseCoverage', { callCount: false, detailed: false }, note);\n"
    "    session.post('Profiler.stopPreciseCoverage', note);\n"
    "    session.post('Profiler.disable', note);\n"
    "    session.disconnect();\n"
    "    return isDone;\n"
    "  } catch {\n"
    "    return false;\n"
    "  }\n"
    "})()";

void v8_recompile_prepare(void)
{
    static const struct symbol symbols[] = {
        {&functions.enqueue_microtask, "_ZN2v87Isolate16EnqueueMicrotaskEPFvPvES1_"},
        {&functions.new_string, "_ZN2v86String11NewFromUtf8EPNS_7IsolateEPKcNS_13NewStringTypeEi"},
        {&functions.compile, "_ZN2v86Script7CompileENS_5LocalINS_7ContextEEENS1_INS_6StringEEEPNS_12ScriptOriginE"},
        {&functions.run, "_ZN2v86Script3RunENS_5LocalINS_7ContextEEE"},
        {&functions.is_truthy, "_ZNK2v85Value12BooleanValueEPNS_7IsolateE"},
    };
    functions.are_found = symbols_find(symbols, sizeof symbols / sizeof symbols[0], NULL);
}

void v8_recompile_soon(void *isolate, void (*callback)(void *isolate))
{
    if (!functions.are_found)
        return;
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    functions.enqueue_microtask(isolate, callback, isolate);
    shim_quiet_end(before);
}

bool v8_recompile(void *isolate)
{
    void *context = v8.context_of(isolate);
    if (context == NULL || v8.environment_of(context) == NULL)
        return false;
    struct shim_quiet before = shim_quiet_begin(shim_services.counters());
    const void *source = functions.new_string(isolate, script, NORMAL_STRING, (int)sizeof script - 1);
    const void *compiled = source == NULL ? NULL : functions.compile(context, source, NULL);
    const void *result = compiled == NULL ? NULL : functions.run(compiled, context);
    bool is_done = result != NULL && functions.is_truthy(result, isolate);
    shim_quiet_end(before);
    return is_done;
}
