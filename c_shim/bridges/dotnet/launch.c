/* .NET programs take the agent whoever starts them: a shell, a script, a service manager.
 *
 * The runtime loads the profiler that three variables name. It reads them when it starts. The program that starts it asks for
 * variables of its own before that: its first call of getenv comes to us, and sets the three. They are gone before the first
 * managed code runs. */
#define _GNU_SOURCE
#include "dotnet.h"
#include "kit/memory.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENABLE "CORECLR_ENABLE_PROFILING"
#define CLASS "CORECLR_PROFILER"
#define PATH "CORECLR_PROFILER_PATH"

static const struct {
    const char *name;
    const uint16_t *wide;
} variables[] = {{ENABLE, u"" ENABLE}, {CLASS, u"" CLASS}, {PATH, u"" PATH}};
static const char *own_path;
static _Atomic(bool) is_set;

/* The program starts the runtime: it is `dotnet`; or it has settings for a runtime beside it; or the runtime is in it. */
static bool starts_runtime(void)
{
    static const char extension[] = ".runtimeconfig.json";
    char path[4096];
    if (dlsym(RTLD_DEFAULT, "DotNetRuntimeInfo") != NULL)
        return true;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof extension);
    if (length <= 0)
        return false;
    memcpy(path + length, extension, sizeof extension);
    if (access(path, F_OK) == 0)
        return true;
    path[length] = 0;
    const char *slash = strrchr(path, '/');
    return slash != NULL && strcmp(slash + 1, "dotnet") == 0;
}

/* Whether the program's user has named another profiler. Libc does not know the environment yet. */
static bool has_other_profiler(void)
{
    const size_t room = 2 << 20;
    size_t used = 0;
    ssize_t got = 0;
    char *all = memory_map(room);
    int file = all == NULL ? -1 : open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
    while (file >= 0 && used < room - 1 && (got = read(file, all + used, room - 1 - used)) > 0)
        used += (size_t)got;
    bool is_enabled = false, is_ours = false;
    for (const char *entry = all; entry != NULL && entry < all + used; entry += strlen(entry) + 1) {
        is_enabled |= strcmp(entry, ENABLE "=1") == 0;
        is_ours |= strcmp(entry, CLASS "=" DOTNET_CLASS_TEXT) == 0;
    }
    if (file >= 0)
        close(file);
    if (all != NULL)
        munmap(all, room);
    return is_enabled && !is_ours;
}

/* Before `main` it would be in vain: libc takes the environment from the kernel after that. */
static char *getenv_of_program(const char *name)
{
    if (!atomic_exchange(&is_set, true)) {
        struct shim_quiet quiet = shim_quiet_begin(shim_services.counters());
        if (setenv(ENABLE, "1", 1) == 0 && setenv(CLASS, DOTNET_CLASS_TEXT, 1) == 0)
            setenv(PATH, own_path, 1);
        shim_quiet_end(quiet);
    }
    return getenv(name);
}

static void join(void)
{
    struct shim_object own;
    if (!starts_runtime() || !shim_services.find_object((const void *)&is_set, &own))
        return;
    if (has_other_profiler()) {
        shim_services.decline("dotnet", CLASS, "names another profiler");
        return;
    }
    own_path = own.path;
    shim_services.redirect_in_program("getenv", (void *)getenv_of_program);
}

/* The runtime has a copy of the environment for managed code, and native code has the original. */
void dotnet_launched(clr_object info)
{
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        CLR(info, INFO_SET_VARIABLE, (clr_object, const uint16_t *, const uint16_t *), variables[i].wide, NULL);
        unsetenv(variables[i].name);
    }
}

/* ---- what the runtime asks the library for ---- */

static clr_result answer_itself(clr_object self, const uint8_t *interface, clr_object *answer)
{
    (void)interface;
    *answer = self;
    return CLR_OK;
}

static clr_result ignore(void)
{
    return CLR_OK;
}

static clr_result create(clr_object self, void *outer, const uint8_t *interface, clr_object *answer)
{
    (void)self;
    (void)outer;
    (void)interface;
    *answer = dotnet_profiler();
    return CLR_OK;
}

/* By the name that the runtime looks up. */
EXPORT clr_result DllGetClassObject(const uint8_t *class, const uint8_t *interface, clr_object *answer)
{
    static void *const functions[FACTORY_FUNCTIONS] = {
        (void *)answer_itself, (void *)ignore, (void *)ignore, [FACTORY_CREATE] = (void *)create, (void *)ignore};
    static void *const *const factory = functions;
    (void)interface;
    if (memcmp(class, DOTNET_CLASS_ID, sizeof(clr_guid)) != 0)
        return CLR_NO_SUCH_CLASS;
    *answer = &factory;
    return CLR_OK;
}

const struct bridge bridge_dotnet = {
    .name = "dotnet",
    .join = join,
    .attach = dotnet_attach,
    .detach = dotnet_detach,
    .after_fork_in_child = dotnet_after_fork_in_child,
};
