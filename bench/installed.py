"""What is installed here for scripts that run other people's programs: interpreters, their packages, servers."""

import glob
import os
import shutil
import subprocess

from bench.servers import Skip

OLDEST_MINOR = 8


def need(*programs):
    for program in programs:
        if not (shutil.which(program) or os.path.exists(program)):
            raise Skip(f"{os.path.basename(program)} is not installed")


def first_line(*command):
    """Of what a program says of itself."""
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()[0]


def postgresql(program):
    """Debian keeps these out of PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"))[-1:] or [shutil.which(program)]
    if not found[0]:
        raise Skip(f"{program} is not installed")
    return found[0]


def pythons(wanted=()):
    """(version, path) of each CPython from 3.8 on; `wanted` has minor versions, such as 3.11."""
    for python in ["/usr/bin/python3", *sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))]:
        asked = subprocess.run([python, "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True)
        version = asked.stdout.strip()
        minor = version.rpartition(".")[0]
        if asked.returncode == 0 and int(minor.split(".")[1]) >= OLDEST_MINOR and (not wanted or minor in wanted):
            yield version, python


def environment_with(python, packages, room):
    """A Python like `python` that has the packages of PyPI, in the directory `room`."""
    inside = os.path.join(room, "bin/python3")
    complete = os.path.join(room, "complete")
    if not os.path.exists(complete):
        for step in ([python, "-m", "venv", room], [inside, "-m", "pip", "install", "-q", *packages]):
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode != 0:
                said = (done.stderr or done.stdout).strip().splitlines()
                raise Skip(said[-1] if said else "pip failed")
        open(complete, "w").close()
    return inside


def package_version(python, package):
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
