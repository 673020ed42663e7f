"""How much larger a process becomes."""

import functools

from bench import running, sizes, text
from bench.effort import Effort
from bench.running import Workload
from bench.setups import PLAIN
from bench.sizes import KIB
from bench.text import Bound, Findings, Rival
from bench.tools import Tools

INTERVALS = (512 * KIB, 32 * KIB, 4 * KIB)


def measure(tools: Tools, effort: Effort) -> Findings:
    """Resident set of a process with a full heap, over the same without the profiler."""
    mebibytes = 256 if effort.is_quick else 1024
    workload = Workload("heap", (tools.program("heap"), str(mebibytes)))

    @functools.cache
    def resident_mib(setup) -> float:
        return running.run(tools, setup, workload).told("resident_kib") / 1024

    rows, ours, rivals = [], {}, []
    for interval in INTERVALS:
        for setup in tools.samplers(interval):
            base = resident_mib(setup.base or PLAIN)
            added = resident_mib(setup) - base
            rows.append(
                [setup.name, sizes.text(interval), f"{base:,.0f} MiB", f"{added:+,.1f} MiB", text.percent(added / base)]
            )
            if setup.name == "allocsample":
                ours[interval] = (added, added / base)
            else:
                rivals.append(
                    Rival(f"resident set, {sizes.text(interval)}", ours[interval][0], setup.name, added, " MiB")
                )
    bounds = [
        Bound(f"resident set over plain, {mebibytes} MiB heap, 512 KiB", ours[512 * KIB][0], 8, " MiB"),
        Bound(f"resident set over plain, {mebibytes} MiB heap, 4 KiB", ours[4 * KIB][1] * 100, 5, " %"),
    ]
    lines = [
        f"Resident set of a process that fills a heap with {mebibytes} MiB in blocks of 16 bytes to 4 KiB and frees "
        "none, relative to the same allocator without the profiler. allocsample's includes the ring, a file in "
        "memory.\n",
        text.table(["profiler", "interval", "without it", "added", ""], rows),
    ]
    return Findings("Memory", "\n".join(lines), bounds, rivals)
