"""What one sample costs a program that uses the caches for itself in between."""

import functools

from bench import running, text
from bench.effort import Effort
from bench.pairing import pair, work_cpu_s
from bench.running import Workload
from bench.setups import NEVER
from bench.text import Findings
from bench.tools import Tools

SWEPT_MIB = (0, 1, 4, 16)
PASSES = 1_000


def measure(tools: Tools, effort: Effort) -> Findings:
    """Each allocation is a sample, less the same run without samples."""
    rows = []
    for busy, idle in zip(tools.samplers(1), tools.samplers(NEVER)):
        row = [busy.name]
        for mebibytes in SWEPT_MIB:
            workload = Workload("cold", (tools.program("cold"), str(mebibytes), str(PASSES)))
            pairs = pair(
                functools.partial(running.run, tools, idle, workload),
                functools.partial(running.run, tools, busy, workload),
                effort.few_rounds,
            )
            row.append(text.nanoseconds(pairs.difference(work_cpu_s).scaled(1 / PASSES)))
        rows.append(row)
    head = ["profiler", *(f"{mebibytes} MiB swept" if mebibytes else "nothing swept" for mebibytes in SWEPT_MIB)]
    lines = [
        "In the samples above, all code and data stay in the caches. In a program that allocates 2 GB/s there are "
        "4,000 samples a second at the default interval, and the program sweeps the caches between them. A sample "
        "then waits for memory: about a hundred lines of code and as many of data. The table shows the time of one "
        "sampled 64-byte block and its free, 25 calls deep, with the same stack, after the program has swept the "
        "given amount. Values are medians of 1,000.\n",
        text.table(head, rows),
    ]
    return Findings("One sample, with cold caches", "\n".join(lines))
