/* Joins a CoreCLR that runs already: .NET 7 and later, whose events report some of the objects.
 *
 * The runtime listens on a socket for diagnostic tools of the same user, and loads a profiler when one of them asks for it. We
 * are such a tool, inside of its own process. */
#define _GNU_SOURCE
#include "dotnet.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* The runtime answers after it has loaded the profiler. */
#define PATIENCE_S 4
#define LONGEST_PATH 1024
enum { HEADER_BYTES = 20, FIRST_WITH_BRIDGE = 7 };
enum command_set { FOR_PROFILERS = 3, FOR_PROCESSES = 4 };
enum { COMMAND_ATTACH = 1, COMMAND_INFO = 4 };

/* Some of its files may lie in directories of many. */
static bool has_runtime(void)
{
    void *library = dlopen("libcoreclr.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL)
        dlclose(library);
    return library != NULL || dlsym(RTLD_DEFAULT, "DotNetRuntimeInfo") != NULL;
}

/* The address of the runtime's socket, whose name has the process's number and the time of its start. */
static bool find_socket(struct sockaddr_un *address)
{
    char prefix[64];
    bool is_found = false;
    const char *directory = getenv("TMPDIR");
    if (directory == NULL || directory[0] == 0)
        directory = "/tmp";
    int length = snprintf(prefix, sizeof prefix, "dotnet-diagnostic-%ld-", (long)getpid());
    DIR *all = opendir(directory);
    address->sun_family = AF_UNIX;
    for (struct dirent *entry; all != NULL && !is_found && (entry = readdir(all)) != NULL;) {
        if (strncmp(entry->d_name, prefix, (size_t)length) != 0)
            continue;
        int used = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", directory, entry->d_name);
        is_found = used > 0 && (size_t)used < sizeof address->sun_path;
    }
    if (all != NULL)
        closedir(all);
    return is_found;
}

struct message {
    uint8_t bytes[1 << 14];
    size_t used;
};

static void add(struct message *message, const void *bytes, size_t count)
{
    memcpy(message->bytes + message->used, bytes, count);
    message->used += count;
}

static void add_number(struct message *message, uint32_t number, size_t bytes)
{
    add(message, &number, bytes);
}

/* The header of a request; `bytes` follow. */
static void begin_request(struct message *message, enum command_set set, uint32_t command, size_t bytes)
{
    message->used = 0;
    add(message, "DOTNET_IPC_V1", 14);
    add_number(message, (uint32_t)(HEADER_BYTES + bytes), 2);
    add_number(message, set, 1);
    add_number(message, command, 1);
    add_number(message, 0, 2);
}

/* How many milliseconds the runtime may take, the profiler's class, its path, and no data for it. */
static bool request_attach(struct message *message, const char *path)
{
    size_t letters = strlen(path) + 1;
    if (letters > LONGEST_PATH)
        return false;
    begin_request(message, FOR_PROFILERS, COMMAND_ATTACH, 4 + sizeof(clr_guid) + 4 + 2 * letters + 4);
    add_number(message, PATIENCE_S * 1000, 4);
    add(message, DOTNET_CLASS_ID, sizeof(clr_guid));
    add_number(message, (uint32_t)letters, 4);
    for (size_t i = 0; i < letters; i++) {
        if ((unsigned char)path[i] >= 0x80)
            return false;
        add_number(message, (unsigned char)path[i], 2);
    }
    add_number(message, 0, 4);
    return true;
}

/* Replaces the request by its answer. */
static bool ask(const struct sockaddr_un *address, struct message *message)
{
    struct timeval patience = {.tv_sec = PATIENCE_S};
    int channel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ssize_t got = -1;
    if (channel < 0)
        return false;
    setsockopt(channel, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(channel, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(channel, (const struct sockaddr *)address, sizeof *address) == 0 &&
        send(channel, message->bytes, message->used, MSG_NOSIGNAL) == (ssize_t)message->used)
        for (message->used = 0; message->used < sizeof message->bytes; message->used += (size_t)got) {
            got = recv(channel, message->bytes + message->used, sizeof message->bytes - message->used, 0);
            if (got <= 0)
                break;
        }
    close(channel);
    return got == 0;
}

/* The answer is the process's number (8 bytes), a cookie (16), and texts: of the command line, the system, the processor, the
 * program, and the runtime's version. A text is how many letters it has, with its 0, and these in UTF-16. */
static uint32_t major_version(const struct message *answer)
{
    size_t at = HEADER_BYTES + 24;
    uint32_t letters = 0, version = 0;
    for (int text = 0; text <= 4; text++) {
        at += text == 0 ? 0 : 2 * (size_t)letters;
        if (at + sizeof letters > answer->used)
            return 0;
        memcpy(&letters, answer->bytes + at, sizeof letters);
        at += sizeof letters;
    }
    for (; at < answer->used && answer->bytes[at] >= '0' && answer->bytes[at] <= '9' && version < 1000; at += 2)
        version = version * 10 + (answer->bytes[at] - '0');
    return version;
}

static void join(const char *path)
{
    struct sockaddr_un address;
    struct message message;
    if (!find_socket(&address))
        return;
    begin_request(&message, FOR_PROCESSES, COMMAND_INFO, 0);
    if (!ask(&address, &message) || major_version(&message) < FIRST_WITH_BRIDGE)
        return;
    /* What it says does not matter: if it has loaded us, it has called us. */
    if (request_attach(&message, path))
        ask(&address, &message);
}

void dotnet_attach(void)
{
    struct shim_object own;
    if (dotnet_resume() || !has_runtime() || !shim_services.find_object((const void *)dotnet_attach, &own))
        return;
    shim_mute();
    join(own.path);
    shim_unmute();
}
