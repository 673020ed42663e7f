/* The JVM's launchers (`java`, `javac`, ...) take the agent whoever starts them: a shell, a script, `env`, a build tool.
 *
 * They hand their arguments to a function of their own library, which we stand before: there is one argument more then. The
 * variable JAVA_TOOL_OPTIONS would do as much, but the JVM says on stderr that it has read it. */
#define _GNU_SOURCE
#include "jvm.h"
#include "kit/memory.h"

#include <stdint.h>
#include <string.h>

static bool is_wanted;

static void join(void)
{
    is_wanted = true;
}

/* `java` has JLI_Launch; a program that starts a JVM itself has nothing of it yet. */
const struct bridge bridge_jvm = {.name = "jvm", .join = join, .attach = jvm_attach, .detach = jvm_detach};

/* Stays for ever: the JVM reads it on a thread of its own. NULL: it cannot be made. */
static char **with_option(int count, char **arguments, const char *prefix)
{
    struct shim_object own;
    if (count < 1 || !shim_services.find_object(&is_wanted, &own))
        return NULL;
    size_t prefix_bytes = strlen(prefix);
    size_t path_bytes = strlen(own.path) + 1;
    /* The option, and the NULL at the end. */
    size_t places = (size_t)count + 2;
    size_t bytes = places * sizeof *arguments + prefix_bytes + path_bytes;
    char **all = memory_map(bytes);
    if (all == NULL)
        return NULL;
    char *option = (char *)(all + places);
    memcpy(option, prefix, prefix_bytes);
    memcpy(option + prefix_bytes, own.path, path_bytes);
    all[0] = arguments[0];
    all[1] = option;
    memcpy(all + 2, arguments + 1, (size_t)(count - 1) * sizeof *arguments);
    return all;
}

/* As it is in libjli of JDK 7 to 25. `is_tool`: what the launcher runs is built in; the JVM's own options have a -J. */
EXPORT int JLI_Launch(int count, char **arguments, int built_in, const char **built_in_arguments, int class_path,
                      const char **class_path_entries, const char *full_version, const char *dot_version,
                      const char *program, const char *launcher, unsigned char is_tool, unsigned char has_wildcard,
                      unsigned char has_no_console, int32_t policy)
{
    __typeof__(&JLI_Launch) next;
    void *found = shim_services.find_symbol("JLI_Launch");
    memcpy(&next, &found, sizeof next);
    if (next == NULL)
        return 1;
    char **all = is_wanted ? with_option(count, arguments, is_tool ? "-J-agentpath:" : "-agentpath:") : NULL;
    if (all != NULL) {
        arguments = all;
        count++;
    }
    return next(count, arguments, built_in, built_in_arguments, class_path, class_path_entries, full_version,
                dot_version, program, launcher, is_tool, has_wildcard, has_no_console, policy);
}
