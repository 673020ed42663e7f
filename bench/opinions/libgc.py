"""libgc's own test program, and Guile's compiler, against a count of each block and libgc's own total."""

import pathlib
import shutil

from .opinion import CACHE, Missing, Opinion, heap_total, profile, run, top_functions
from bench.sources import source_of

# Before the library's functions: bytes by the exported function that called. libgc's sizes, as ours are.
COUNTS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { const char *name; double bytes; } sites[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
size_t GC_size(const void *);

static void *charge(void *block, void *caller)
{
    Dl_info found;
    const char *name = dladdr(caller, &found) && found.dli_sname ? found.dli_sname : "?";
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < 4096; at++) {
        if (sites[at].name == NULL)
            sites[at].name = name;
        if (sites[at].name == name || strcmp(sites[at].name, name) == 0) {
            sites[at].bytes += (double)GC_size(block);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return block;
}

#define WRAP(NAME, PARAMETERS, ...)                                                                                    \
    void *NAME PARAMETERS                                                                                              \
    {                                                                                                                  \
        static void *(*next) PARAMETERS;                                                                               \
        if (next == NULL)                                                                                              \
            next = dlsym(RTLD_NEXT, #NAME);                                                                            \
        void *block = next(__VA_ARGS__);                                                                               \
        return block == NULL ? NULL : charge(block, __builtin_return_address(0));                                      \
    }
WRAP(GC_malloc, (size_t size), size)
WRAP(GC_malloc_atomic, (size_t size), size)
WRAP(GC_malloc_uncollectable, (size_t size), size)
WRAP(GC_malloc_explicitly_typed, (size_t size, size_t type), size, type)
WRAP(GC_calloc_explicitly_typed, (size_t count, size_t size, size_t type), count, size, type)

static __attribute__((destructor)) void tell(void)
{
    FILE *file = fopen("counted", "w");
    for (size_t at = 0; at < 4096 && sites[at].name != NULL; at++)
        fprintf(file, "%s %.0f\n", sites[at].name, sites[at].bytes);
    fclose(file);
}
"""
# Guile's own compiler, on its largest module.
SCHEME = """
(use-modules (system base compile))
(compile-file "/usr/share/guile/3.0/ice-9/psyntax.scm" #:output-file "x.go")
(display (assq-ref (gc-stats) 'heap-total-allocated))
"""


def opinions(place):
    if not pathlib.Path("/usr/include/gc.h").exists() or shutil.which("gcc") is None:
        raise Missing("libgc (Debian: libgc-dev, gcc)")
    tree = source_of("libgc", r"/(tests|include)/", CACHE)
    # All of its functions have names for the linker, and calls of their own.
    build = ["gcc", "-O1", "-g", "-w", "-fno-inline", "-fno-optimize-sibling-calls", "-rdynamic", "-DGC_THREADS",
             "-DGC_BUILTIN_ATOMIC", "-I", str(tree / "include"), "-o", "gctest", str(tree / "tests/test.c"), "-lgc", "-pthread"]
    run(build, place)
    (place / "counts.c").write_text(COUNTS)
    run(["gcc", "-O1", "-w", "-shared", "-fPIC", "-o", "counts.so", "counts.c", "-lgc"], place)
    profile(["./gctest"], place, "256K")
    run(["./gctest"], place, {"LD_PRELOAD": str(place / "counts.so")})
    counted = {name: float(size) for name, size in (line.rsplit(" ", 1) for line in (place / "counted").read_text().splitlines())}
    top = next((row for row in top_functions(place, "libgc") if row["function"] in counted), None)
    if top is not None:
        yield Opinion("libgc", "gctest, of its own tests", top["function"], top["bytes"], top["error"], "each block, interposed",
                      counted[top["function"]])
    if shutil.which("guile") is not None:
        (place / "compiles.scm").write_text(SCHEME)
        counted = profile(["guile", "--no-auto-compile", "compiles.scm"], place, "256K")
        total, error = heap_total(place, "libgc")
        yield Opinion("Guile", "its compiler", "all of its heap: nobody else tells sites", total, error, "gc-stats", float(counted))
