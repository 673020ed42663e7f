"""What is written for real programs, and how much room it takes."""

from bench import running, sizes, text
from bench.effort import Effort
from bench.figures.programs_timed import INTERVALS, SCALE, all_programs
from bench.text import Bound, Findings
from bench.tools import Tools

FEWEST = 100
"""Samples below which a file is mostly what it says of the process."""


def measure(tools: Tools, effort: Effort) -> Findings:
    """One run of each program at each interval."""
    rows, bounds = [], []
    for name, workload in all_programs(tools, effort, 1 if effort.is_quick else SCALE).items():
        for interval in INTERVALS:
            found = running.run(tools, tools.ours(interval), workload, read_profiles=True).profiles
            each = found.file_bytes / max(found.samples, 1)
            counts = [f"{number:,}" for number in (found.samples, found.lost, found.file_bytes)]
            rows.append([name, sizes.text(interval), *counts, f"{each:.0f}"])
            if found.samples >= FEWEST:
                bounds.append(Bound(f"{name}, {sizes.text(interval)}, bytes on disk a sample", each, 30))
    lines = [
        "Size of the profiles of the programs above, including the module list and the places of symbols. Names are "
        "looked up later, but java's profile contains its methods and types. *Lost* counts samples that were due "
        "and found no room in the ring.\n",
        text.table(["program", "interval", "samples", "lost", "file, bytes", "bytes a sample"], rows),
    ]
    return Findings("On disk", "\n".join(lines), bounds)
