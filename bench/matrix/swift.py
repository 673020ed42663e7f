"""Swift: Debian's compilers, with the system's malloc. They take 3 GB each, so no end is run by default."""

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, built, first_number

NAME = "Swift"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.swift"
DEBIANS = ["trixie", "unstable"]
ENDS = []


def versions(places):
    for suite in DEBIANS:
        try:
            # The compiler needs the headers and the linker of C.
            root = places.debian(suite, "swiftlang", "libc6-dev", "libstdc++-14-dev", "gcc")
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield compiled(places, f"Debian {suite}", root)


def compiled(places, where, root):
    try:
        number = first_number(["swiftc", "--version"], root)
    except Missing as why:
        return Version(where, [], PROGRAM, missing=str(why))

    def build(source, program):
        return ["swiftc", "-O", "-g", "-module-name", "known_truth", "-o", program, source]

    return built(f"{number}, {where}", PROGRAM, build, places, root)
