"""Counts instructions with valgrind's callgrind, which leaves malloc alone.

Counts do not depend on what else the machine does. The drain thread is counted too, apart.
"""

import dataclasses
from pathlib import Path

from bench import running
from bench.running import Profiles, RunFailed, Workload
from bench.setups import Setup
from bench.tools import Tools


@dataclasses.dataclass
class Count:
    """Instructions of one run: of the first thread, and of all others together."""

    main: int
    others: int
    profiles: Profiles

    @property
    def total(self) -> int:
        """Of all threads."""
        return self.main + self.others


def command(valgrind: str | None, directory: Path) -> list[str]:
    """What goes in front of a program."""
    if valgrind is None:
        raise RunFailed("valgrind is not installed")
    return [
        valgrind,
        "--tool=callgrind",
        "--quiet",
        "--separate-threads=yes",
        # Threads take turns: the drain thread would else starve while the program is busy.
        "--fair-sched=yes",
        f"--callgrind-out-file={directory}/counts",
    ]


def count(tools: Tools, setup: Setup, workload: Workload, read_profiles: bool = False) -> Count:
    """Runs once and counts."""
    with running.run_directory(tools) as directory:
        argv = [*command(tools.valgrind, directory), *running.arguments(setup, workload, directory)]
        running.execute(setup, workload, directory, argv)
        profiles = running.profiles_in(tools, directory) if read_profiles else Profiles()
        return read_counts(directory, profiles)


def read_counts(directory: Path, profiles: Profiles) -> Count:
    """Adds up what callgrind left: a file for each thread."""
    threads = {path.name.rpartition("-")[2]: _total(path) for path in directory.glob("counts-*")}
    main = threads.pop("01", 0)
    if main == 0:
        raise RunFailed("callgrind counted nothing")
    return Count(main, sum(threads.values()), profiles)


def _total(path: Path) -> int:
    with path.open(errors="replace") as lines:
        for line in lines:
            if line.startswith(("totals:", "summary:")):
                return int(line.split()[1])
    return 0
