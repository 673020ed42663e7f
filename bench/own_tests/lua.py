"""The tests of LPeg with Lua, and of LuaJIT."""

import os
import pathlib
import re
import shutil
import subprocess

from bench.own_tests.suite import Cases, git_tree, Missing, PASSED, room_for, say, source_of, Suite, tool_version


def lua():
    tool_version("lua5.4", r"Lua (5\.4)")
    tests = {}
    tree = source_of("lua-lpeg", r"/(test\.lua|re\.lua)$")
    has_module = subprocess.run(["lua5.4", "-e", "require 'lpeg'"], capture_output=True).returncode == 0
    if not has_module:
        raise Missing("no lpeg (Debian: lua-lpeg)")
    for path in sorted(tree.rglob("test.lua")):
        tests["lpeg/test.lua"] = (["lua5.4", str(path)], str(path.parent))
    own = os.environ.get("LUA_TESTS")
    if own:
        options = "_port = true; _soft = true"
        for path in sorted(pathlib.Path(own).glob("*.lua")):
            tests[path.name] = (["lua5.4", "-e", options, path.name], own)
    name = "`test.lua` of LPeg" + (", and Lua's own tests" if own else "")
    return Suite("Lua 5.4", name, tests, heap="lua")


LUAJIT_TESTS = ("https://github.com/LuaJIT/LuaJIT-test-cleanup.git", "014708bceb70550a3ab8d539cff14d9085ca9cb8")


def luajit_verdicts(status, output):
    """Each test by its line, and the numbers of those that failed; nothing tells where one ends, but the next one's line."""
    begun = re.findall(r"^\[ *(\d+)/\d+\] (.*)$", output, re.MULTILINE)
    if not begun:
        return status
    end = re.search(r"^\d+ passed(?:, \d+ failed\n.*: ([\d ]+))?$", output, re.MULTILINE)
    failed = (end.group(1) or "").split() if end else [begun[-1][0]]
    return Cases(status, {f"{number} {name}": "failed" if number in failed else PASSED for number, name in begun})


def luajit():
    tool_version("luajit", r"LuaJIT (\d+\.\d+)")
    url, commit = LUAJIT_TESTS
    built = room_for("luajit")
    tree = built / "tests"
    shutil.copytree(git_tree("luajit", url, commit, commit) / "test", tree)
    # The tests of the interfaces to C look for their libraries there.
    (tree / "clib").mkdir()
    for library, compiler in (("ctest.c", "gcc"), ("cpptest.cpp", "g++")):
        command = [compiler, "-O2", "-w", "-shared", "-fPIC", "-I/usr/include/luajit-2.1", str(tree / "src" / library),
                   "-o", str(tree / "clib" / pathlib.Path(library).with_suffix(".so"))]
        if subprocess.run(command, capture_output=True).returncode != 0:
            say(f"LuaJIT: without {library} (Debian: libluajit-5.1-dev)")
    # All at once in three ways: as it is, interpreted only, and compiled as soon as may be.
    tests = {f"test.lua {' '.join(options)}": (["luajit", *options, "test.lua"], str(tree))
             for options in ([], ["-joff"], ["-Ohotloop=1", "-Ohotexit=1"])}
    # Those that are not part of it yet look for others relative to where they run.
    path = "package.cpath = '../clib/?.so;' .. package.cpath"
    for directory in ("misc", "lib/ffi", "lib/table", "unportable", "sysdep"):
        for source in sorted((tree / directory).glob("*.lua")):
            name = str(source.relative_to(tree))
            tests[name] = (["luajit", "-e", path, f"../{name}"], str(tree / "misc"))
    return Suite("LuaJIT", "LuaJIT-test-cleanup", tests, luajit_verdicts, heap="lua")
