/* Names of functions of JavaScript, as the profile has them.
 *
 * Most functions of a program have no name of their own, nor has the code outside of functions. A report adds up what functions of the
 * same name allocate, so these are named after their place: `(anonymous)[lib/server.js:12:34]`, `(top level)[express/index.js]`. */
#define _GNU_SOURCE
#include "v8.h"

#include <stdio.h>
#include <string.h>

/* A short form of a path: from the name of the package on, or the file with its directory. */
static const char *short_path(const char *path)
{
    if (strncmp(path, "node:", 5) == 0)
        return path;
    static const char packages[] = "node_modules/";
    const char *package = NULL;
    for (const char *at = path; (at = strstr(at, packages)) != NULL; at += strlen(packages))
        package = at + strlen(packages);
    if (package != NULL)
        return package;
    const char *file = strrchr(path, '/');
    const char *directory = file == NULL ? NULL : memrchr(path, '/', (size_t)(file - path));
    return directory == NULL ? path : directory + 1;
}

/* V8 says of the code outside of functions that it begins with the first character of its file. */
void v8_define_function(uint32_t number, const char *name, const char *file, int line, int column)
{
    char described[1024];
    if (name == NULL)
        name = "";
    if (file == NULL)
        file = "";
    if (name[0] == 0 && line <= 0)
        name = "(anonymous)";
    if (name[0] == 0) {
        if (line == 1 && column <= 1 && file[0] != 0)
            snprintf(described, sizeof described, "(top level)[%s]", short_path(file));
        else
            snprintf(described, sizeof described, "(anonymous)[%s:%d:%d]", file[0] == 0 ? "eval" : short_path(file), line, column);
        name = described;
    }
    v8_hooks->define_function(v8_heap, number, name, file, line > 0 ? (uint32_t)line : 0);
}
