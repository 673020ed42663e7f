"""Tcl: 8.6, 9.0 and 9.1 of the Debians that have them."""

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, interpreter

NAME = "Tcl"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.tcl"
DEBIANS = [("bullseye", "8.6"), ("trixie", "8.6"), ("trixie", "9.0"), ("unstable", "8.6"), ("unstable", "9.0"), ("unstable", "9.1")]
ENDS = [("bullseye", "tcl8.6"), ("unstable", "tcl9.1")]


def versions(places):
    if places.here:
        yield found("tclsh8.6", "Debian")
    for suite, short in DEBIANS:
        try:
            root = places.debian(suite, f"tcl{short}")
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"{short}, Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield found(f"tclsh{short}", f"Debian {suite}", root)


def found(command, where, root=None):
    """tclsh has no option that prints its version: a shell feeds it."""
    said = interpreter("/bin/sh", ["-c", f"echo 'puts [info patchlevel]' | {command}"], [], PROGRAM, where, root)
    return said if said.missing else Version(said.name, [f"/usr/bin/{command}"], PROGRAM, root)
