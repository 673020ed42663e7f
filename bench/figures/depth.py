"""What sampling costs a program that does nothing but allocate, 25 calls deep."""

import functools

from bench import running, setups, sizes, text
from bench.effort import Effort
from bench.figures.fast_path import base_name
from bench.pairing import Spread, pair, process_cpu_s
from bench.running import Workload
from bench.setups import PLAIN, Setup
from bench.sizes import KIB
from bench.text import Bound, Findings, Rival
from bench.tools import Tools

BOUNDS = {(64, 512 * KIB): 1.06, (512, 512 * KIB): 1.10, (64, 32 * KIB): 1.15, (512, 32 * KIB): 1.8}
PAIRS = {64: 12_000_000, 512: 6_000_000}
TRACED_PAIRS = 500_000
"""For those who record every allocation."""


def measure(tools: Tools, effort: Effort) -> Findings:
    """CPU time of the whole process, ours with its drain thread, start and end."""
    ratios: dict[tuple[str, str], dict[tuple[int, int], Spread]] = {}
    for size, interval in BOUNDS:
        for setup in tools.samplers(interval):
            key = (setup.name, base_name(setup.base or PLAIN))
            workload = _pairs(tools, size, effort.scaled(PAIRS[size]))
            ratios.setdefault(key, {})[size, interval] = _ratio(tools, setup, workload, effort.few_rounds)
    shim = setups.passthrough(tools.shim)
    ratios[shim.name, "glibc"] = {
        (size, 0): _ratio(tools, shim, _pairs(tools, size, effort.scaled(PAIRS[size])), effort.few_rounds)
        for size in PAIRS
    }
    if tools.heaptrack:
        tracer = setups.heaptrack(tools.heaptrack)
        traced = {size: _ratio(tools, tracer, _pairs(tools, size, TRACED_PAIRS), 1) for size in PAIRS}
        ratios[tracer.name, "glibc"] = {(size, 0): ratio for size, ratio in traced.items()}
    head = ["under", "over", *(f"{size} B, {sizes.text(interval)}" for size, interval in BOUNDS)]
    rows = [[name, base, *_cells(figures)] for (name, base), figures in ratios.items()]
    ours = ratios["allocsample", "glibc"]
    bounds = [
        Bound(
            f"{size}-byte pairs at depth 25, interval {sizes.text(interval)}, CPU over glibc",
            ours[size, interval].median,
            most,
            "x",
        )
        for (size, interval), most in BOUNDS.items()
    ]
    rivals = [
        Rival(
            f"{size}-byte pairs at depth 25, {sizes.text(interval)}, CPU over the same allocator",
            ours[size, interval].median,
            name,
            figures[size, interval].median,
            "x",
        )
        for (name, _), figures in ratios.items()
        for size, interval in BOUNDS
        if name != "allocsample" and (size, interval) in figures and name != shim.name
    ]
    lines = [
        "CPU time of a process that only allocates and frees, 25 calls deep, relative to the same allocator without "
        "the profiler. Rows without an interval have the same figure in both columns.\n",
        text.table(head, rows),
    ]
    return Findings("A program that only allocates", "\n".join(lines), bounds, rivals)


def _cells(figures: dict[tuple[int, int], Spread]) -> list[str]:
    return [text.ratio(figures.get((size, interval)) or figures[size, 0]) for size, interval in BOUNDS]


def _pairs(tools: Tools, size: int, count: int) -> Workload:
    return Workload("pairs", (tools.program("pairs"), str(size), str(count), "25", "0", "0"))


def _ratio(tools: Tools, setup: Setup, workload: Workload, rounds: int) -> Spread:
    def run(which: Setup):
        return functools.partial(running.run, tools, which, workload)

    return pair(run(setup.base or PLAIN), run(setup), rounds).ratio(process_cpu_s)
