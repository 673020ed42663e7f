"""R: Debian's, and those that the environment variable MATRIX_RS names.

One made from its sources (`./configure --enable-R-shlib`, or without that: R is then in the program itself) is named like this, in the
chroot of a Debian or without one: MATRIX_RS=/opt/R-4.4/bin/Rscript,unstable:/opt/R-devel/bin/Rscript
"""

from bench.matrix.version import PROGRAMS, from_suites, interpreter, named_in

NAME = "R"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.R"
DEBIANS = ["bullseye", "trixie", "unstable"]
ENDS = [("bullseye", "r-base-core"), ("unstable", "r-base-core")]
NUMBER = ["-e", "cat(format(getRversion()))"]
# Functions have lines only if the file is read in this way.
WITH_LINES = ["-e", "source(commandArgs(TRUE)[1], keep.source = TRUE)"]


def versions(places):
    yield from from_suites(places, PROGRAM, "r-base-core", DEBIANS, lambda where, root: found("Rscript", where, root))
    yield from named_in("MATRIX_RS", places, found)


def found(file, where, root=None):
    yield interpreter(file, NUMBER, WITH_LINES, PROGRAM, where, root)
