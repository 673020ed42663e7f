"""Nim: Debian's compilers, with the allocator of malloc. Nim's own allocator is not sampled."""

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, built, first_number

NAME = "Nim"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.nim"
FLAGS = ["-d:release", "--debugger:native", "-d:useMalloc"]
DEBIANS = ["unstable"]
ENDS = [("here", ""), ("unstable", "nim"), ("unstable", "gcc")]


def versions(places):
    if places.here:
        yield from of_one_debian(places, "Debian", None)
    for suite in DEBIANS:
        try:
            root = places.debian(suite, "nim", "gcc")
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield from of_one_debian(places, f"Debian {suite}", root)


def of_one_debian(places, where, root):
    try:
        number = first_number(["nim", "--version"], root)
    except Missing as why:
        yield Version(where, [], PROGRAM, missing=str(why))
        return
    for manager in ("arc", "orc"):
        def build(source, program, manager=manager):
            return ["nim", "c", *FLAGS, f"--mm:{manager}", f"--nimcache:{program}.cache", f"-o:{program}", source]

        yield built(f"{number}, {where}, {manager}", PROGRAM, build, places, root)
