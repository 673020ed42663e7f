"""R: Debian's, and those that the environment variable MATRIX_RS names.

One made from its sources (`./configure --enable-R-shlib`, or without that: R is then in the program itself) is named like this, in the
chroot of a Debian or without one: MATRIX_RS=/opt/R-4.4/bin/Rscript,unstable:/opt/R-devel/bin/Rscript
"""

import os

from bench.matrix.version import PROGRAMS, Missing, Version, first_line

NAME = "R"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.R"
DEBIANS = ["bullseye", "trixie", "unstable"]
NUMBER = ["-e", "cat(format(getRversion()))"]
# Functions have lines only if the file is read in this way.
WITH_LINES = ["-e", "source(commandArgs(TRUE)[1], keep.source = TRUE)"]


def versions(places):
    yield from found("Rscript", "Debian")
    for suite in DEBIANS:
        try:
            root = places.debian(suite, "r-base-core")
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield from found("Rscript", f"Debian {suite}", root)
    for named in filter(None, os.environ.get("MATRIX_RS", "").split(",")):
        suite, _, program = named.rpartition(":")
        yield from found(program, f"Debian {suite}" if suite else "built from source", places.debian(suite) if suite else None)


def found(program, where, root=None):
    try:
        number = first_line([*(["chroot", str(root)] if root else []), program, *NUMBER])
    except Missing as why:
        yield Version(f"{program}, {where}", [], PROGRAM, missing=str(why))
        return
    yield Version(f"{number}, {where}", [program, *WITH_LINES], PROGRAM, root)
