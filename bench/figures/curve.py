"""The plot of interval against overhead."""

import functools

from bench import callgrind, plot, running, sizes, text, workloads
from bench.effort import Effort
from bench.plot import Line
from bench.setups import PLAIN
from bench.sizes import KIB
from bench.text import Findings
from bench.tools import Tools

INTERVALS = tuple(KIB << shift for shift in (2, 4, 6, 9, 11))
"""4 KiB to 2 MiB."""


def measure(tools: Tools, effort: Effort) -> Findings:
    """sqlite3 under each sampler at each interval, by callgrind."""
    intervals = INTERVALS[::2] if effort.is_quick else INTERVALS
    workload = workloads.real_programs(tools, 1).get("sqlite3")
    if workload is None:
        return Findings("Interval against overhead", "sqlite3 is not installed.\n")
    # tcmalloc would not sample most of so short a run.
    contenders = [s for interval in intervals for s in tools.samplers(interval) if s.unsampled_bytes == 0]
    bases = list(dict.fromkeys(setup.base or PLAIN for setup in contenders))
    counts = running.in_parallel(
        [functools.partial(callgrind.count, tools, setup, workload) for setup in bases + contenders]
    )
    base_counts = {base.name: count.total for base, count in zip(bases, counts)}
    added: dict[str, dict[int, float]] = {}
    for setup, count in zip(contenders, counts[len(bases) :]):
        added.setdefault(setup.name, {})[setup.interval_bytes] = (
            count.total / base_counts[(setup.base or PLAIN).name] - 1
        )
    drawing = plot.log_log(
        [
            Line(name, [(interval, fraction * 100) for interval, fraction in points.items()])
            for name, points in added.items()
        ],
        title="Instructions added to sqlite3, by sampling interval",
        x_label="interval",
        y_label="% of the program's instructions",
    )
    rows = [[name, *(text.percent(points[interval]) for interval in intervals)] for name, points in added.items()]
    lines = [
        "![Instructions added to sqlite3 by interval](cost.svg)\n",
        "The same as a table: instructions added to sqlite3, relative to the same allocator without the profiler.\n",
        text.table(["profiler", *(sizes.text(interval) for interval in intervals)], rows),
    ]
    return Findings("Interval against overhead", "\n".join(lines), drawing=drawing)
