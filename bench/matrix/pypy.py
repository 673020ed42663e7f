"""PyPy: Debian's, and those that the environment variable MATRIX_PYPYS names.

Without its compiler, which does without objects that nobody reads. The bridge joins only when the program starts.
"""

import dataclasses

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, interpreter, named_in

NAME = "PyPy"
INTERVAL = "16K"
HEAP = "pypy"
OPTIONS = ["--runtime", "pypy"]
PROGRAM = PROGRAMS / "known_truth_pypy.py"
DEBIANS = [("bullseye", "pypy"), ("bullseye", "pypy3"), ("trixie", "pypy3"), ("forky", "pypy3"), ("unstable", "pypy3")]
ENDS = [("bullseye", "pypy"), ("unstable", "pypy3")]
NUMBER = ["-c", "import sys; print('%d.%d.%d for Python %d.%d' % (sys.pypy_version_info[:3] + sys.version_info[:2]))"]


def versions(places):
    if places.here:
        yield from found("/usr/bin/pypy3", "Debian")
    for suite, package in DEBIANS:
        try:
            root = places.debian(suite, package)
        except NotAnEnd:
            continue
        except Missing as why:
            yield dataclasses.replace(interpreter(package, NUMBER, [], PROGRAM, f"Debian {suite}"), missing=str(why))
            continue
        yield from found(f"/usr/bin/{package}", f"Debian {suite}", root)
    yield from named_in("MATRIX_PYPYS", places, found)


def found(file, where, root=None):
    version = interpreter(file, NUMBER, ["--jit", "off"], PROGRAM, where, root)
    yield dataclasses.replace(version, variables={"PYPY_GC_NURSERY": "1M"})
