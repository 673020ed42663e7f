"""Lua and LuaJIT: those of several Debians, and those that the environment variable MATRIX_LUAS names. LuaJIT also without its compiler.

One made from its sources is named like this, in the chroot of a Debian or without one:
MATRIX_LUAS=/opt/lua5.5/bin/lua,trixie:/opt/luajit/bin/luajit
"""

from bench.matrix.version import PROGRAMS, Missing, Version, interpreter, named_in

NAME = "Lua"
INTERVAL = "16K"
HEAP = "lua"
OWN = {"KNOWN_TRUTH_OWN": "1"}
OWN_HEAP = "lua"
PROGRAM = PROGRAMS / "known_truth.lua"
NAMES = ["lua5.1", "lua5.2", "lua5.3", "lua5.4", "luajit"]
ENDS = [("bullseye", "lua5.1"), ("unstable", "lua5.5"), ("unstable", "luajit")]
DEBIANS = {"bullseye": NAMES, "trixie": NAMES, "unstable": [*NAMES[:-1], "lua5.5", NAMES[-1]]}


def versions(places):
    for name in NAMES if places.here else []:
        yield from found(f"/usr/bin/{name}", "Debian")
    for suite, all_names in DEBIANS.items():
        names = [name for name in all_names if places.has(suite, name)]
        if not names:
            continue
        try:
            root = places.debian(suite, *names)
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        for name in names:
            yield from found(f"/usr/bin/{name}", f"Debian {suite}", root)
    yield from named_in("MATRIX_LUAS", places, found)


def found(file, where, root=None):
    said = interpreter(file, ["-v"], [], PROGRAM, where, root)
    if said.missing:
        yield said
        return
    # "Lua 5.4.4  Copyright ...", "LuaJIT 2.1.0-beta3 -- Copyright ..."
    number = " ".join(said.name.split()[:2]).removeprefix("Lua ")
    # Before glibc 2.34 a process without libpthread cannot be attached to.
    can_attach = "bullseye" not in where
    yield Version(f"{number}, {where}", said.command, PROGRAM, root, can_attach=can_attach)
    if number.startswith("LuaJIT"):
        yield Version(f"{number}, {where}, `-joff`", [*said.command, "-joff"], PROGRAM, root, can_attach=can_attach)
