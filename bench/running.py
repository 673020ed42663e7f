"""Runs a program under a setup and tells what it cost."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.setups import Setup
from bench.tools import Tools

_numbers = itertools.count()


@dataclasses.dataclass
class Workload:
    """A program with its arguments and input."""

    name: str
    argv: tuple[str, ...]
    stdin: Path | None = None
    drive: Callable[[Path], None] | None = None
    """Makes a server work and end; gets the directory that it runs in."""
    preload: tuple[str, ...] = ()
    """Libraries that make it do the same in each run, whatever the setup."""


@dataclasses.dataclass
class Profiles:
    """What our agent wrote in one run."""

    samples: int = 0
    lost: int = 0
    file_bytes: int = 0


@dataclasses.dataclass
class Outcome:
    """What one run cost. CPU time is user and system time of the program and all that it waited for."""

    cpu_s: float
    wall_s: float
    stdout: str
    profiles: Profiles

    def told(self, name: str) -> float:
        """A number that the program printed behind its name."""
        found = re.search(rf"^{name} (\S+)$", self.stdout, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"the program did not tell {name}")
        return float(found.group(1))


class RunFailed(Exception):
    """A program ended with an error."""


@contextlib.contextmanager
def run_directory(tools: Tools) -> Iterator[Path]:
    """A directory for what one run writes, gone afterwards."""
    directory = tools.scratch / "runs" / f"{os.getpid()}-{next(_numbers)}"
    directory.mkdir(parents=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def environment(setup: Setup, workload: Workload, directory: Path) -> dict[str, str]:
    """A bare environment, the same for all, and what the workload and the setup add."""
    bare = {"PATH": os.environ["PATH"], "HOME": str(directory), "LC_ALL": "C", "PYTHONHASHSEED": "0"}
    libraries = (*setup.preload, *workload.preload)
    preloaded = {"LD_PRELOAD": ":".join(libraries)} if libraries else {}
    return {**bare, **setup.environment_in(directory), **preloaded}


def arguments(setup: Setup, workload: Workload, directory: Path) -> list[str]:
    """The workload's arguments behind the setup's own."""
    wrapper = [part.replace("{directory}", str(directory)) for part in setup.wrapper]
    return [*wrapper, *workload.argv]


def run(tools: Tools, setup: Setup, workload: Workload, read_profiles: bool = False) -> Outcome:
    """Runs once. Profiles are read only where asked for: that takes time."""
    with run_directory(tools) as directory:
        start_s = time.monotonic()
        stdout, usage = execute(setup, workload, directory, arguments(setup, workload, directory))
        wall_s = time.monotonic() - start_s
        profiles = profiles_in(tools, directory) if read_profiles else Profiles()
        return Outcome(usage.ru_utime + usage.ru_stime, wall_s, stdout, profiles)


def execute(setup: Setup, workload: Workload, directory: Path, argv: list[str]) -> tuple[str, resource.struct_rusage]:
    """Runs `argv` for the workload to its end: what it printed, and what it and all that it waited for used."""
    stdin = workload.stdin or Path(os.devnull)
    output = directory / "stdout"
    with stdin.open("rb") as reading, output.open("wb") as writing:
        child = subprocess.Popen(
            argv,
            env=environment(setup, workload, directory),
            cwd=directory,
            stdin=reading,
            stdout=writing,
            stderr=subprocess.DEVNULL,
        )
    try:
        if workload.drive:
            workload.drive(directory)
    except BaseException:
        child.kill()
        child.wait()
        raise
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RunFailed(f"{workload.name} under {setup.name}: exit status {child.returncode}")
    return output.read_text(errors="replace"), usage


def profiles_in(tools: Tools, directory: Path) -> Profiles:
    """Reads all profiles that our agent left in a directory."""
    found = Profiles()
    for path in directory.glob("*.allocsample"):
        printed = subprocess.run([tools.command, "report", "--format", "json", path], capture_output=True, check=True)
        report = json.loads(printed.stdout)
        found.samples += report["samples"]
        found.lost += report["lost_samples"]
        found.file_bytes += path.stat().st_size
    return found


def in_parallel(jobs: Sequence, workers: int = os.cpu_count() or 1) -> list:
    """Results of functions without arguments, in order, as many at a time as there are cores. For what is counted, not
    timed."""
    results: list = [None] * len(jobs)
    errors: list[BaseException] = []
    numbers = iter(range(len(jobs)))
    lock = threading.Lock()

    def work() -> None:
        while not errors:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                results[number] = jobs[number]()
            except BaseException as error:  # told to whoever waits
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt as interrupt:
        # The threads look at this between two jobs.
        errors.append(interrupt)
        raise
    if errors:
        raise errors[0]
    return results
