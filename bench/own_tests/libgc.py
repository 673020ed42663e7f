"""libgc's tests."""

import pathlib
import subprocess

from bench.own_tests.suite import Missing, room_for, source_of, Suite


def suite():
    if not pathlib.Path("/usr/include/gc.h").exists():
        raise Missing("no libgc (Debian: libgc-dev)")
    tree = source_of("libgc", r"/(tests|include)/")
    built = room_for("libgc")
    tests = {}
    for source in sorted((tree / "tests").glob("*.c")):
        program = built / source.stem
        # Some look at the collector's own headers.
        command = ["gcc", "-O1", "-w", "-DGC_THREADS", "-DGC_BUILTIN_ATOMIC", "-I", str(tree / "include"), "-o", str(program),
                   str(source), "-lgc", "-pthread"]
        if subprocess.run(command, capture_output=True, timeout=120).returncode == 0:
            tests[source.name] = ([str(program)], None)
    return Suite("libgc", "`tests` of libgc", tests, heap="libgc")
