"""Each bridge beside the runtime's own profiler."""

import os
import platform
import shutil
import sys

from bench.runtimes import programs
from bench.runtimes.programs import ROUNDS_OF_OWN, cell

INTERVALS = ("512K", "32K")


def setups(runtime, agent):
    """(name, command, variables), the plain program first. A profiler of the runtime's own is its name."""
    without_bridge = {**runtime.under_agent(agent, "512K"), "ALLOCSAMPLE_RUNTIME": "none"}
    made = [("plain", runtime.command(), {})]
    made += [(interval, runtime.command(), runtime.under_agent(agent, interval)) for interval in INTERVALS]
    made.append(("none", runtime.command(), without_bridge))
    made += [(own, runtime.command(own), own.variables) for own in runtime.own]
    return made


def section(scratch, agent, rounds, only):
    """Markdown; None if nothing of it is asked for."""
    lines = []
    for runtime in programs.runtimes(scratch):
        if only and runtime.name not in only:
            continue
        if shutil.which(runtime.needs) is None:
            print(f"bench-runtimes: not installed, left out: {runtime.name}", file=sys.stderr)
            continue
        found = programs.measure(runtime, setups(runtime, agent), rounds)
        cells = [cell(found.get(name)) for name in (*INTERVALS, "none")]
        cells.append("; ".join(f"{cell(found[own])} {own.name}" for own in runtime.own) or "-")
        lines.append(f"| {runtime.name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr)
    if not lines:
        return None
    return "\n".join([
        f"Processor time over the plain program: median and quartiles of {rounds} rounds on {os.cpu_count()} cores"
        f" ({platform.machine()}), by `scripts/bench-runtimes`; of {ROUNDS_OF_OWN} for the runtimes' own profilers. The interval is the mean number of bytes between samples.",
        "",
        "| runtime | 512 KiB | 32 KiB | 512 KiB, `--runtime none` | other profilers |",
        "| --- | --- | --- | --- | --- |",
        *lines,
    ])
