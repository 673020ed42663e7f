"""Perl: Debian's, and those that the environment variable MATRIX_PERLS names.

Debian builds Perl with threads. One made from its sources (`./Configure -des -Uusethreads`) is named like this, in the chroot of a
Debian or without one: MATRIX_PERLS=/opt/perl5.42/bin/perl,unstable:/opt/perl5.44/bin/perl
"""

from bench.matrix.version import PROGRAMS, from_suites, interpreter, named_in

NAME = "Perl"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.pl"
DEBIANS = ["bullseye", "trixie", "unstable"]
ENDS = [("bullseye", "perl"), ("unstable", "perl")]
NUMBER = ["-MConfig", "-e", "printf '%vd%s', $^V, $Config{usethreads} ? '' : ', no threads'"]


def versions(places):
    yield from from_suites(places, PROGRAM, "perl", DEBIANS, lambda where, root: found("/usr/bin/perl", where, root))
    yield from named_in("MATRIX_PERLS", places, found)


def found(file, where, root=None):
    yield interpreter(file, NUMBER, [], PROGRAM, where, root)
