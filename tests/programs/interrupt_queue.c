/* An addon of Node.js: fills the isolate's queue of interrupts, for which V8 takes memory, while nearly every allocation is a sample.
 * Returns a function that says how many interrupts came in their order. */
#define _GNU_SOURCE
#include "allocsample.h"

#include <dlfcn.h>
#include <stdbool.h>

enum { INTERRUPTS = 20000, INTERVAL_BYTES = 64 };

/* node_api.h */
typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_callback_info__ *napi_callback_info;
int napi_create_int32(napi_env env, int32_t value, napi_value *result);
int napi_create_function(napi_env env, const char *name, size_t length,
                         napi_value (*function)(napi_env, napi_callback_info), void *data, napi_value *result);

static intptr_t served;

static void on_interrupt(void *isolate, void *number)
{
    (void)isolate;
    served += served == (intptr_t)number;
}

static napi_value count(napi_env env, napi_callback_info info)
{
    napi_value result = NULL;
    (void)info;
    napi_create_int32(env, (int32_t)served, &result);
    return result;
}

napi_value napi_register_module_v1(napi_env env, napi_value exports)
{
    void *(*current)(void);
    void (*request)(void *isolate, void (*callback)(void *, void *), void *data);
    *(void **)&current = dlsym(RTLD_DEFAULT, "_ZN2v87Isolate13TryGetCurrentEv");
    *(void **)&request = dlsym(RTLD_DEFAULT, "_ZN2v87Isolate16RequestInterruptEPFvPS0_PvES2_");
    const allocsample_hooks *hooks = allocsample_find();
    if (hooks != NULL)
        hooks->process_control(ALLOCSAMPLE_START, INTERVAL_BYTES);
    for (intptr_t i = 0; i < INTERRUPTS; i++)
        request(current(), on_interrupt, (void *)i);
    napi_value function = exports;
    napi_create_function(env, "count", (size_t)-1, count, NULL, &function);
    return function;
}
