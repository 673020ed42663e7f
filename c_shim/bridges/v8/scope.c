/* Scopes for V8's handles, where V8 has opened none for us.
 *
 * Up to V8 13 the public constructor and destructor of v8::HandleScope are exported. V8 14 compiles them into every addon instead:
 * they save and restore the two pointers of v8::internal::HandleScopeData, whose place in an isolate is a constant of the headers.
 * Here that place is found at run time, by what the exported v8::SealHandleScope writes there, so that no version has to be
 * known. */
#define _GNU_SOURCE
#include "v8.h"

#include <dlfcn.h>

/* v8::internal::HandleScopeData */
struct data {
    uintptr_t next, limit; /* of the block of handles */
    int32_t level, sealed_level;
};
/* How much of an isolate is searched: the beginning, which addons use. */
enum { WORDS = 512 };

static struct {
    void (*begin)(void *scope, void *isolate); /* v8::HandleScope; NULL: not exported */
    void (*end)(void *scope);
    void (*seal)(void *scope, void *isolate); /* v8::SealHandleScope */
    void (*unseal)(void *scope);
    void (*delete_extensions)(void *isolate);
} functions;
/* Of HandleScopeData in an isolate; 0: not found yet. */
static _Atomic(size_t) offset;

void v8_scope_prepare(void)
{
    *(void **)&functions.begin = dlsym(RTLD_DEFAULT, "_ZN2v811HandleScopeC1EPNS_7IsolateE");
    *(void **)&functions.end = dlsym(RTLD_DEFAULT, "_ZN2v811HandleScopeD1Ev");
    *(void **)&functions.seal = dlsym(RTLD_DEFAULT, "_ZN2v815SealHandleScopeC1EPNS_7IsolateE");
    *(void **)&functions.unseal = dlsym(RTLD_DEFAULT, "_ZN2v815SealHandleScopeD1Ev");
    *(void **)&functions.delete_extensions = dlsym(RTLD_DEFAULT, "_ZN2v811HandleScope16DeleteExtensionsEPNS_7IsolateE");
}

static bool has_scope(void)
{
    return functions.begin != NULL && functions.end != NULL;
}

/* A sealed scope has no room, `limit` is `next`, and its level is the one that is sealed. Exactly one place changes to that. */
void v8_scope_find(void *isolate)
{
    const uintptr_t *words = isolate;
    uintptr_t before[WORDS], sealed[8] = {0};
    size_t found = 0, candidates = 0;
    if (has_scope() || functions.seal == NULL || functions.unseal == NULL || functions.delete_extensions == NULL ||
        atomic_load_explicit(&offset, memory_order_relaxed) != 0)
        return;
    for (size_t i = 0; i < WORDS; i++)
        before[i] = words[i];
    functions.seal(sealed, isolate);
    for (size_t i = 0; i + 2 < WORDS; i++) {
        const struct data *data = (const struct data *)(words + i);
        if (before[i + 1] != data->limit && before[i] == data->next && data->limit == data->next &&
            data->level == data->sealed_level) {
            found = i;
            candidates++;
        }
    }
    functions.unseal(sealed);
    if (candidates == 1 && words[found + 1] == before[found + 1])
        atomic_store_explicit(&offset, found * sizeof words[0], memory_order_relaxed);
}

bool v8_scope_is_found(void)
{
    return has_scope() || atomic_load_explicit(&offset, memory_order_relaxed) != 0;
}

bool v8_scope_begin(struct v8_scope *scope, void *isolate)
{
    size_t at = atomic_load_explicit(&offset, memory_order_relaxed);
    if (has_scope()) {
        functions.begin(scope->memory, isolate);
        return true;
    }
    if (at == 0)
        return false;
    struct data *data = (struct data *)((uintptr_t)isolate + at);
    scope->memory[0] = data->next;
    scope->memory[1] = data->limit;
    data->level++;
    return true;
}

void v8_scope_end(struct v8_scope *scope, void *isolate)
{
    if (has_scope()) {
        functions.end(scope->memory);
        return;
    }
    struct data *data = (struct data *)((uintptr_t)isolate + atomic_load_explicit(&offset, memory_order_relaxed));
    data->next = scope->memory[0];
    data->level--;
    if (data->limit != scope->memory[1]) {
        data->limit = scope->memory[1];
        functions.delete_extensions(isolate);
    }
}
