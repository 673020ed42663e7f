"""Crystal: Debian's compilers. Its collector is libgc."""

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, built, first_number

NAME = "Crystal"
INTERVAL = "16K"
HEAP = "libgc"
PROGRAM = PROGRAMS / "known_truth.cr"
DEBIANS = ["trixie", "unstable"]
ENDS = [("here", ""), ("unstable", "crystal")]


def versions(places):
    if places.here:
        yield compiled(places, "Debian", None)
    for suite in DEBIANS:
        try:
            root = places.debian(suite, "crystal")
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield compiled(places, f"Debian {suite}", root)


def compiled(places, where, root):
    try:
        number = first_number(["crystal", "--version"], root)
    except Missing as why:
        return Version(where, [], PROGRAM, missing=str(why))

    def build(source, program):
        return ["crystal", "build", "--release", "--debug", "-o", program, source]

    return built(f"{number}, {where}", PROGRAM, build, places, root)
