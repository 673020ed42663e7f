"""The tests of LPeg, against an allocator that counts each block at its line."""

import shutil
import subprocess

from .opinion import CACHE, Missing, Opinion, heap_total, profile, run, top_lines
from bench.sources import source_of

COUNTS = r"""
#include <lua.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { char file[LUA_IDSIZE]; int line; double bytes; } sites[1 << 14];
static lua_State *state;
static lua_Alloc next;
static void *context;

static void charge(size_t size)
{
    lua_Debug frame;
    for (int level = 0; lua_getstack(state, level, &frame); level++) {
        lua_getinfo(state, "Sl", &frame);
        if (frame.currentline <= 0)
            continue;
        unsigned long hash = (unsigned)frame.currentline * 31u;
        for (const char *c = frame.short_src; *c != 0; c++)
            hash = hash * 131 + (unsigned char)*c;
        for (;; hash++) {
            size_t at = hash % (sizeof sites / sizeof sites[0]);
            if (sites[at].line == 0) {
                strcpy(sites[at].file, frame.short_src);
                sites[at].line = frame.currentline;
            }
            if (sites[at].line == frame.currentline && strcmp(sites[at].file, frame.short_src) == 0) {
                sites[at].bytes += (double)size;
                return;
            }
        }
    }
}

static void *counts(void *unused, void *block, size_t old, size_t size)
{
    (void)unused;
    if (size > 0)
        charge(size);
    return next(context, block, old, size);
}

static void tell(void)
{
    FILE *file = fopen("counted", "w");
    for (size_t at = 0; at < sizeof sites / sizeof sites[0]; at++) {
        if (sites[at].line != 0)
            fprintf(file, "%.0f %d %s\n", sites[at].bytes, sites[at].line, sites[at].file);
    }
    fclose(file);
}

int luaopen_counts(lua_State *the_state)
{
    state = the_state;
    next = lua_getallocf(state, &context);
    lua_setallocf(state, counts, NULL);
    atexit(tell);
    return 0;
}
"""


def opinions(place):
    if shutil.which("lua5.4") is None or subprocess.run(["lua5.4", "-e", "require 'lpeg'"], capture_output=True).returncode != 0:
        raise Missing("lua5.4 with lpeg (Debian: lua5.4, lua-lpeg)")
    tree = source_of("lua-lpeg", r"/(test|re)\.lua$", CACHE)
    for name in ("test.lua", "re.lua"):
        shutil.copy(tree / name, place)
    (place / "counts.c").write_text(COUNTS)
    headers = subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-Wl,-z,nodelete", "-I/usr/include/lua5.4", "-o", "counts.so", "counts.c"], cwd=place)
    if headers.returncode != 0:
        raise Missing("Lua's headers and gcc (Debian: liblua5.4-dev, gcc)")
    profile(["lua5.4", "test.lua"], place, "2K")
    top = top_lines(place, "file LIKE '%.lua'", "heap_id = (SELECT heap_id FROM heaps WHERE heap = 'lua')")[0]
    run(["lua5.4", "test.lua"], place, {"LUA_INIT": "package.loadlib('./counts.so', 'luaopen_counts')()"})
    rows = (line.split(" ", 2) for line in (place / "counted").read_text().splitlines())
    counted = {(file.lstrip("./"), int(line)): float(size) for size, line, file in rows}
    name = top["file"].rsplit("/", 1)[-1]
    yield Opinion("Lua 5.4", "LPeg's tests", f"{top['function']}, {name}:{top['line']}", top["bytes"], top["error"],
                  "each block, by lua_setallocf", counted.get((name, top["line"]), 0))
    if shutil.which("luajit") is not None:
        yield of_luajit(place)


def of_luajit(place):
    """Sites are told by nobody, us included."""
    program = "dofile('test.lua') io.write('\\n', collectgarbage('count') * 1024, '\\n') os.exit(0, false)"
    printed = profile(["luajit", "-e", program], place, "1K")
    total, error = heap_total(place, "lua", "samples.live")
    return Opinion("LuaJIT", "LPeg's tests", "all that is alive at the end", total, error, "collectgarbage",
                   float(printed.split()[-1]))
