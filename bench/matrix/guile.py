"""Guile: Debian's. The plain run compiles the program, and the others load what it has compiled."""

from bench.matrix.version import PROGRAMS, from_suites, interpreter

NAME = "Guile"
INTERVAL = "32K"
PROGRAM = PROGRAMS / "known_truth.scm"
DEBIANS = ["trixie", "unstable"]
ENDS = [("unstable", "guile-3.0")]
NUMBER = ["-c", "(display (version))"]


def versions(places):
    yield from from_suites(places, PROGRAM, "guile-3.0", DEBIANS, found)


def found(where, root):
    yield interpreter("/usr/bin/guile", NUMBER, [], PROGRAM, where, root)
