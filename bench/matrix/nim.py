"""Nim: Debian's compiler, with the allocator of malloc. Nim's own allocator is not sampled."""

from bench.matrix.version import PROGRAMS, Missing, Version, built, first_number

NAME = "Nim"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.nim"
FLAGS = ["-d:release", "--debugger:native", "-d:useMalloc"]


def versions(places):
    try:
        number = first_number(["nim", "--version"])
    except Missing as why:
        yield Version("Debian", [], PROGRAM, missing=str(why))
        return
    for manager in ("arc", "orc"):
        def build(source, program, manager=manager):
            return ["nim", "c", *FLAGS, f"--gc:{manager}", f"--nimcache:{program}.cache", f"-o:{program}", source]

        yield built(f"{number}, Debian, {manager}", PROGRAM, build, places)
