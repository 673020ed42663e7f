/* The options behind the library's path: `-agentpath:liballocsample.so=OPTIONS`, `jcmd PID JVMTI.agent_load liballocsample.so OPTIONS`. */
#include "options.h"

#include <string.h>

/* Whether the option begins with the name; `rest` is what follows it. */
static bool is_named(const char *option, size_t length, const char *name, const char **rest)
{
    size_t bytes = strlen(name);
    *rest = option + bytes;
    return length >= bytes && memcmp(option, name, bytes) == 0;
}

/* A number of bytes, such as 512K. 0: it is none. */
static uint64_t bytes_of(const char *text, const char *end)
{
    uint64_t number = 0;
    unsigned shift = 0;
    const char *at = text;
    for (; at < end && *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(number, (uint64_t)10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*at - '0'), &number))
            return 0;
    if (at + 1 == end) {
        const char *unit = strchr("KMG", *at);
        if (unit == NULL)
            return 0;
        shift = 10 * (unsigned)(unit - "KMG" + 1);
        at++;
    }
    bool is_whole = at == end && number <= UINT64_MAX >> shift;
    return is_whole ? number << shift : 0;
}

static bool read_option(const char *option, size_t length, struct jvm_options *options)
{
    const char *rest;
    if (is_named(option, length, "check", &rest) && rest == option + length) {
        options->is_checking = true;
        return true;
    }
    if (!is_named(option, length, "interval=", &rest))
        return false;
    options->interval_bytes = bytes_of(rest, option + length);
    return options->interval_bytes > 0;
}

bool jvm_read_options(const char *text, struct jvm_options *options)
{
    *options = (struct jvm_options){.interval_bytes = 0};
    bool are_known = true;
    while (text != NULL && *text != 0) {
        size_t length = strcspn(text, ",");
        are_known &= length == 0 || read_option(text, length, options);
        text += length + (text[length] == ',');
    }
    return are_known;
}
