"""CPython: Debian's, pyenv's, and those that the environment variable MATRIX_PYTHONS names.

Debian packages no build without the interpreter's lock. One made from its sources (`./configure --disable-gil`) in the chroot of a
Debian is named with that: MATRIX_PYTHONS=trixie:/opt/python3.13t/bin/python3,/another/python3
"""

import glob
import os

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, first_line, named_in

NAME = "CPython"
INTERVAL = "4K"
OWN = {"PYTHONTRACEMALLOC": "1"}
PROGRAM = PROGRAMS / "known_truth.py"
DEBIANS = [("trixie", "3.13"), ("unstable", "3.13"), ("unstable", "3.14"), ("unstable", "3.15")]
ENDS = [("unstable", "python3.15")]
VERSION = "import sys, sysconfig; print(sys.version.split()[0] + ('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))"


def versions(places):
    installed = ["/usr/bin/python3", *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")), key=minor)]
    for python in installed if places.here else []:
        yield from found(python, "pyenv" if ".pyenv" in python else "Debian")
    for suite, short in DEBIANS:
        try:
            root = places.debian(suite, f"python{short}")
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"{short}, Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield from found(f"/usr/bin/python{short}", f"Debian {suite}", root)
        # Debian builds it in, switched off.
        if minor(short) >= 14:
            yield from found(f"/usr/bin/python{short}", f"Debian {suite}, PYTHON_JIT=1", root, {"PYTHON_JIT": "1"})
    yield from named_in("MATRIX_PYTHONS", places, lambda file, where, root: found(file, "built from source", root))


def minor(path):
    """3.14 and /a/3.14.1/bin/python3 have 14."""
    return int(path.rpartition("3.")[2].split(".")[0] if "/" not in path else path.split("/3.")[1].split(".")[0])


def found(python, where, root=None, variables=None):
    try:
        number = first_line([*(["chroot", str(root)] if root else []), python, "-c", VERSION])
    except Missing as why:
        yield Version(f"{python}, {where}", [], PROGRAM, missing=str(why))
        return
    if int(number.split(".")[1]) >= 8:
        yield Version(f"{number}, {where}", [python], PROGRAM, root, variables or {})
