/* Behaviour: a program whose thread, heap, types, functions, files and collections have names that want to be markup,
 * script, or the end of a string. */
#include "../../c_shim/include/allocsample.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

enum { NAMES = 9, OBJECTS = 20 };

static const char *const hostile[NAMES] = {
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'`${alert(3)}<!--",
    "{{scripts}}{{data}}&lt;b&gt;&amp;",
    "line\nbreak\ttab\x01\x1f\x7f",
    "separators \xe2\x80\xa8 and \xe2\x80\xa9 \xe2\x80\xae right to left",
    "not UTF-8 \xff\xfe",
    "__proto__",
    "comma,semicolon;space backslash\\ percent%s",
};

static uint64_t allocated(const allocsample_hooks *agent, allocsample_heap *heap)
{
    uint64_t bytes = 0;
    for (uint32_t at = 0; at < NAMES * OBJECTS; at++) {
        const allocsample_frame frames[] = {{.function = 1 + at % NAMES, .line = 1 + at},
                                            {.function = 1 + (at + 1) % NAMES, .line = 7}};
        uint64_t size = 1000 + 10 * at;
        agent->sampled(heap, 0x10000 + 0x10000 * (uintptr_t)at, size, 1 + at % NAMES, frames, 2);
        bytes += size;
        /* One in three lives on. */
        if (at % 3 != 0)
            agent->freed(heap, 0x10000 + 0x10000 * (uintptr_t)at);
    }
    return bytes;
}

int main(void)
{
    prctl(PR_SET_NAME, "</script>'\"<b>");
    for (size_t at = 0; at < 50; at++)
        free(at % 2 ? malloc(5000 + at) : realloc(malloc(100), 7000));
    const allocsample_hooks *agent = allocsample_find();
    if (agent == NULL)
        return 0;
    allocsample_heap *heap = agent->heap_register(&(allocsample_heap_description){
        .size = sizeof(allocsample_heap_description), .kind = ALLOCSAMPLE_EXTERNAL, .name = "heap </script><u>\"'"});
    for (uint32_t at = 0; at < NAMES; at++) {
        agent->define_type(heap, 1 + at, hostile[at], hostile[NAMES - 1 - at]);
        agent->define_function(heap, 1 + at, hostile[at], "/tmp/\"><img src=x onerror=alert(4)>.c", 3);
        agent->define_statistic(heap, 1 + at, hostile[at], at % 2 ? "bytes" : hostile[at]);
        agent->value(heap, 1 + at, 100 * at);
    }
    uint64_t bytes = allocated(agent, heap);
    for (uint32_t at = 0; at < 6; at++) {
        uint64_t end = agent->now_ns();
        const uint64_t values[] = {1 + at, 1000 * at};
        agent->gc(heap, &(allocsample_gc){.size = sizeof(allocsample_gc), .kind = at == 5 ? ALLOCSAMPLE_MAJOR : ALLOCSAMPLE_MINOR,
                                          .id = at, .begin_ns = end - 1000 * (at + 1), .end_ns = end, .statistics = 1, .values = values});
        agent->marker(heap, hostile[at], end - 10, end);
        agent->phase(heap, hostile[at]);
    }
    printf("%llu\n", (unsigned long long)bytes);
    return 0;
}
