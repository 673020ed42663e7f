"""What a sample costs when many threads take them at once."""

import functools

from bench import running, text
from bench.effort import Effort
from bench.pairing import Spread, pair, process_cpu_s, work_cpu_s
from bench.running import Profiles, Workload
from bench.setups import NEVER
from bench.sizes import KIB
from bench.text import Bound, Findings
from bench.tools import Tools

INTERVAL = 4 * KIB
THREADS = (1, 2, 4, 8, 16)
PAIRS = 4_000_000
"""Of all threads together."""
SIZE = 64


def measure(tools: Tools, effort: Effort) -> Findings:
    """At an interval of 4 KiB, less the same run without samples."""
    rows, single, bounds = [], {}, []
    for busy, idle in zip(tools.samplers(INTERVAL), tools.samplers(NEVER)):
        for threads in THREADS:
            count = effort.scaled(PAIRS) // threads
            workload = Workload("pairs", (tools.program("pairs"), str(SIZE), str(count), "25", "0", "0", str(threads)))
            samples = count * threads * SIZE / INTERVAL
            profiles = Profiles()
            if busy.name == "allocsample":
                profiles = running.run(tools, busy, workload, read_profiles=True).profiles
                # A sample that finds no room has cost its stack all the same.
                samples = profiles.samples + profiles.lost
            pairs = pair(
                functools.partial(running.run, tools, idle, workload),
                functools.partial(running.run, tools, busy, workload),
                effort.few_rounds,
            )
            on_thread: Spread = pairs.difference(work_cpu_s).scaled(1 / samples)
            in_all: Spread = pairs.difference(process_cpu_s).scaled(1 / samples)
            single.setdefault(busy.name, on_thread.median)
            growth = on_thread.median / single[busy.name]
            lost = f"{profiles.lost:,} of {samples:,.0f}" if busy.name == "allocsample" else "-"
            rows.append(
                [busy.name, str(threads), text.nanoseconds(on_thread), text.nanoseconds(in_all), f"{growth:.2f}x", lost]
            )
            if busy.name == "allocsample" and threads == THREADS[-1]:
                bounds.append(Bound("sample on one of 16 threads over a single thread's", growth, 1.5, "x"))
    lines = [
        "64-byte pairs at depth 25 on so many threads, interval 4 KiB: CPU time a sample, as above. *Lost* are "
        "samples that found the ring full, which a profile tells.\n",
        text.table(["profiler", "threads", "on the programs' threads", "in all", "over one thread", "lost"], rows),
    ]
    return Findings("Threads", "\n".join(lines), bounds)
