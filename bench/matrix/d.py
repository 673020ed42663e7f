"""D: Debian's compilers, with druntime as a shared library. One that is a part of the program is not sampled."""

from bench.matrix.version import PROGRAMS, Missing, Version, built, first_number

NAME = "D"
INTERVAL = "16K"
HEAP = "d"
OWN = {"KNOWN_TRUTH_OWN": "1"}
PROGRAM = PROGRAMS / "known_truth.d"
DEBIANS = ["trixie"]


def versions(places):
    yield from of_one_debian(places, "Debian", None)
    for suite in DEBIANS:
        try:
            root = places.debian(suite, "gdc", "ldc")
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield from of_one_debian(places, f"Debian {suite}", root)


def of_one_debian(places, where, root):
    for compiler, named, flags, output in (("gdc", "GDC", ["-O2", "-g", "-shared-libphobos"], "-o"),
                                           ("ldc2", "LDC", ["-O2", "-g", "-link-defaultlib-shared"], "-of=")):
        def build(source, program, command=(compiler, *flags), output=output):
            return [*command, source, *([output, program] if output == "-o" else [output + program])]

        try:
            number = first_number([compiler, "--version"], root)
        except Missing as why:
            yield Version(f"{named}, {where}", [], PROGRAM, missing=str(why))
            continue
        yield built(f"{named} {number}, {where}", PROGRAM, build, places, root, can_attach=False)
