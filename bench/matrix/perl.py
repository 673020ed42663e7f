"""Perl: Debian's, and those that the environment variable MATRIX_PERLS names.

Debian builds Perl with threads. One made from its sources (`./Configure -des -Uusethreads`) is named like this, in the chroot of a
Debian or without one: MATRIX_PERLS=/opt/perl5.42/bin/perl,unstable:/opt/perl5.44/bin/perl
"""

import os

from bench.matrix.version import PROGRAMS, Missing, Version, first_line

NAME = "Perl"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.pl"
DEBIANS = ["bullseye", "trixie", "unstable"]
NUMBER = ["-MConfig", "-e", "printf '%vd%s', $^V, $Config{usethreads} ? '' : ', no threads'"]


def versions(places):
    yield from found("/usr/bin/perl", "Debian")
    for suite in DEBIANS:
        try:
            root = places.debian(suite, "perl")
        except Missing as why:
            yield Version(f"Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield from found("/usr/bin/perl", f"Debian {suite}", root)
    for named in filter(None, os.environ.get("MATRIX_PERLS", "").split(",")):
        suite, _, perl = named.rpartition(":")
        yield from found(perl, f"Debian {suite}" if suite else "built from source", places.debian(suite) if suite else None)


def found(perl, where, root=None):
    try:
        number = first_line([*(["chroot", str(root)] if root else []), perl, *NUMBER])
    except Missing as why:
        yield Version(f"{perl}, {where}", [], PROGRAM, missing=str(why))
        return
    yield Version(f"{number}, {where}", [perl], PROGRAM, root)
