"""docs/cost.md, from what was found."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from bench import text
from bench.text import Findings
from bench.tools import ROOT

INTRODUCTION = """\
# Cost of profiling native programs

[All pages](README.md) · [Glossary](glossary.md)

Written by `scripts/bench`, on {machine}.

Every figure compares runs of the same program with the same input and the same allocator, which differ only in the profiler.
Peers are compared with their own allocator without profiling. Every profiler writes one profile at the end, except
tcmalloc's sampler, which writes none. [runtimes.md](runtimes.md) has the cost of language runtimes.

- **Instructions** are counted by callgrind, for all threads of the process. They hardly change between runs.
- **CPU time** is user and system time, in rounds of A, B, B, A. Tables show the median and the quartiles of the rounds.
- An **interval** is the mean number of bytes between two samples; the default is 512 KiB.
"""

BESIDE_PEERS = """\
The cost that sampling adds, relative to the profiler's own allocator. In bold, the peer is cheaper by more than 2 %. The
sections below describe the runs.
"""

MEASURE_AGAIN = """\
## Repeating the measurements
`scripts/bench` writes this page and the picture in about a quarter of an hour on two cores. `scripts/bench --quick` takes two
minutes, and `--only PART` runs one part; both only print their results. `scripts/setup` installs the requirements on Debian 12
(Ubuntu is untested). Other work on the machine increases the spread of times, but does not affect instruction counts.
`tests/agent/fast_path.rs` verifies the number of instructions of the fast path.
"""


def bounds(findings: list[Findings]) -> str:
    """All figures that we hold ourselves to."""
    rows = [bound.row() for found in findings for bound in found.bounds]
    return text.table(["figure", "measured", "bound", "within"], rows)


def beside_peers(findings: list[Findings]) -> str:
    """All figures that a peer has too."""
    return text.rivalry([rival for found in findings for rival in found.rivals])


def write(findings: list[Findings]) -> None:
    """Replaces the page and its picture."""
    parts = [INTRODUCTION.format(machine=_machine())]
    parts.append(f"## Comparison with peers\n{BESIDE_PEERS}\n{beside_peers(findings)}")
    parts += [f"## {found.title}\n{found.text}" for found in findings]
    parts.append(f"## Bounds\nThe project's own limits, and whether this run stayed within them.\n\n{bounds(findings)}")
    parts.append(MEASURE_AGAIN)
    _replace(ROOT / "docs/cost.md", "\n".join(part.replace("\n\n\n", "\n\n") for part in parts))
    for found in findings:
        if found.drawing:
            _replace(ROOT / "docs/cost.svg", found.drawing)


def _replace(path: Path, content: str) -> None:
    aside = path.with_suffix(path.suffix + ".new")
    aside.write_text(content)
    aside.rename(path)


def _machine() -> str:
    """Its class, in words."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    kind = " ".join(
        word for word in (models or [platform.machine()])[0].replace("(R)", "").split() if word != "Processor"
    )
    virtual = "virtual " if " hypervisor " in f"{cpuinfo} " else ""
    with open("/proc/meminfo") as lines:
        gibibytes = round(int(lines.readline().split()[1]) / 2**20)
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    versions = [
        f"glibc {platform.libc_ver()[1]}",
        f"gcc {_version('gcc', '-dumpfullversion')}",
        _version("valgrind", "--version"),
    ]
    return (
        f"a {virtual}machine with {os.cpu_count()} {platform.machine()} cores ({kind}), {gibibytes} GiB of memory, {system}, "
        + ", ".join(version for version in versions if version)
    )


def _version(command: str, option: str) -> str:
    if shutil.which(command) is None:
        return ""
    return subprocess.run([command, option], capture_output=True, text=True, check=False).stdout.strip()
