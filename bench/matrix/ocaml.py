"""OCaml: native programs by Debian's compilers. Bytecode is not sampled."""

import shutil
import subprocess

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, first_line

NAME = "OCaml"
INTERVAL = "16K"
HEAP = "ocaml"
OWN = {"KNOWN_TRUTH_OWN": "1"}
SOURCE = PROGRAMS / "known_truth.ml"
DEBIANS = [("trixie", "ocaml"), ("unstable", "ocaml")]
ENDS = [("unstable", "ocaml")]
FLAGS = ["-g", "-I", "+unix", "unix.cmxa"]


def versions(places):
    if places.here:
        yield compiled(places, "Debian")
    for suite, package in DEBIANS:
        try:
            root = places.debian(suite, package)
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"Debian {suite}", [], SOURCE, missing=str(why))
            continue
        yield compiled(places, f"Debian {suite}", root)


def compiled(places, where, root=None):
    inside = ["chroot", str(root)] if root else []
    try:
        number = first_line([*inside, "ocamlopt", "-version"])
    except Missing as why:
        return Version(where, [], SOURCE, missing=str(why))
    directory = places.work / f"ocaml-{number}"
    directory.mkdir(parents=True, exist_ok=True)
    work = root / "opt" if root else directory
    shutil.copy(SOURCE, work)
    seen = "/opt" if root else str(directory)
    done = subprocess.run([*inside, "sh", "-c", f"cd {seen} && ocamlopt {' '.join(FLAGS)} -o known_truth known_truth.ml"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return Version(f"{number}, {where}", [], SOURCE, missing=done.stderr.strip().splitlines()[-1])
    program = directory / "known_truth"
    if root:
        shutil.copy(work / "known_truth", program)
    return Version(f"{number}, {where}", [], program, root)
