"""Zig: the wheels of PyPI, with libc's allocator. Zig's own allocators are not sampled."""

import subprocess
import sys

from bench.matrix.version import PROGRAMS, Version, built

NAME = "Zig"
INTERVAL = "16K"
PROGRAM = PROGRAMS / "known_truth.zig"
VERSIONS = ["0.13.0", "0.15.2", "0.17.1"]
ENDS = [("PyPI", "0.13.0"), ("PyPI", "0.17.1")]


def versions(places):
    for number in VERSIONS:
        if not places.has("PyPI", number):
            continue
        where = places.work / f"zig-{number}"
        python = where / "bin/python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", f"ziglang=={number}"], capture_output=True, text=True)
        if done.returncode != 0:
            yield Version(f"{number}, PyPI", [], PROGRAM, missing=done.stderr.strip().splitlines()[-1])
            continue

        def build(source, program, python=python):
            options = ["-lc", "-O", "ReleaseSafe", "-fno-strip", f"-femit-bin={program}"]
            return [str(python), "-m", "ziglang", "build-exe", source, *options]

        yield built(f"{number}, PyPI", PROGRAM, build, places)
