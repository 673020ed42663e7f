/* Prints what the bridge finds in a library of PyPy, and the votes: see find-build. */
#define _GNU_SOURCE
#include "find.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* PyPy needs this library itself. */
static pypy_uncompress *find_uncompress(void)
{
    void *zlib = dlopen("libz.so.1", RTLD_NOW), *found = zlib == NULL ? NULL : dlsym(zlib, "uncompress");
    pypy_uncompress *uncompress;
    memcpy(&uncompress, &found, sizeof uncompress);
    return uncompress;
}

static void print(const struct pypy_build *found)
{
    printf("build ");
    for (size_t i = 0; i < sizeof found->id; i++)
        printf("%02x", found->id[i]);
#define FIELD(NAME) printf(".%s = %#x,\n", #NAME, found->NAME)
    printf("\n");
    FIELD(reserve), FIELD(collect), FIELD(step), FIELD(entry);
    FIELD(log_start), FIELD(log_stop), FIELD(log_sections);
    FIELD(gc), FIELD(state), FIELD(threshold), FIELD(free), FIELD(top), FIELD(large_bytes), FIELD(small_bytes);
    FIELD(type_names), FIELD(type_ids), FIELD(frames_of_code), FIELD(lock), FIELD(ident), FIELD(thread_bytes);
    FIELD(codes), FIELD(handles), FIELD(name), FIELD(number), FIELD(file), FIELD(line), FIELD(code_type), FIELD(string_type);
}

int main(int argc, char **argv)
{
    enum { ROOM_BYTES = 4 << 20 };
    const char *path = argc == 2 ? argv[1] : "";
    int file = open(path, O_RDONLY);
    off_t length = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    void *bytes = length <= 0 ? MAP_FAILED : mmap(NULL, (size_t)length, PROT_READ, MAP_PRIVATE, file, 0);
    struct pypy_search search = {find_uncompress(), malloc(ROOM_BYTES), ROOM_BYTES};
    struct pypy_build found;
    struct pypy_votes votes[PYPY_BALLOTS];
    if (bytes == MAP_FAILED || search.room == NULL) {
        fprintf(stderr, "find-build: %s: cannot be read\n", path);
        return 1;
    }
    const char *why = pypy_find(bytes, (size_t)length, &search, &found, votes);
    for (int i = 0; i < PYPY_BALLOTS; i++)
        fprintf(stderr, "%s: %u of %u votes\n", pypy_ballot_name((enum pypy_ballot)i), votes[i].winner, votes[i].all);
    if (why != NULL) {
        fprintf(stderr, "find-build: %s: %s\n", path, why);
        return 1;
    }
    print(&found);
    return 0;
}
