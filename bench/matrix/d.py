"""D: Debian's compilers, with druntime as a shared library. One that is a part of the program is not sampled."""

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, built, first_number

NAME = "D"
INTERVAL = "16K"
HEAP = "d"
OWN = {"KNOWN_TRUTH_OWN": "1"}
PROGRAM = PROGRAMS / "known_truth.d"
# With the packages, and the compilers. LDC links by `cc`.
DEBIANS = [
    ("trixie", ["gdc", "ldc", "gcc"], ["gdc", "ldc2"]),
    ("unstable", ["gdc-14"], ["gdc-14"]),
    ("unstable", ["gdc-15"], ["gdc-15"]),
    ("unstable", ["gdc", "ldc", "gcc"], ["gdc", "ldc2"]),
]
ENDS = [("unstable", "gdc"), ("unstable", "ldc"), ("unstable", "gcc")]
COMPILERS = {
    "gdc": ("GDC", ["-O2", "-g", "-shared-libphobos"], "-o"),
    "ldc2": ("LDC", ["-O2", "-g", "-link-defaultlib-shared"], "-of="),
}


def versions(places):
    if places.here:
        yield from of_one_debian(places, "Debian", None, ["gdc", "ldc2"])
    for suite, packages, compilers in DEBIANS:
        try:
            root = places.debian(suite, *packages)
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"{' '.join(packages)}, Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield from of_one_debian(places, f"Debian {suite}", root, compilers)


def of_one_debian(places, where, root, compilers):
    for compiler in compilers:
        named, flags, output = COMPILERS[compiler.split("-")[0]]

        def build(source, program, command=(compiler, *flags), output=output):
            return [*command, source, *([output, program] if output == "-o" else [output + program])]

        try:
            number = first_number([compiler, "--version"], root)
        except Missing as why:
            yield Version(f"{named}, {where}", [], PROGRAM, missing=str(why))
            continue
        yield built(f"{named} {number}, {where}", PROGRAM, build, places, root)
