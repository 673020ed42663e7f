"""What malloc and free cost when no sample is due."""

import functools

from bench import callgrind, running, setups, text
from bench.effort import Effort
from bench.pairing import Spread, pair, work_cpu_s
from bench.running import Workload
from bench.setups import NEVER, PLAIN, Setup
from bench.sizes import KIB
from bench.text import Bound, Findings, Rival
from bench.tools import Tools

SIZES = (64, 512, 4096)
COUNTED = (50_000, 150_000)
"""Pairs in two runs: their difference is free of start and end."""


def measure(tools: Tools, effort: Effort) -> Findings:
    """Instructions exactly, times in pairs."""
    contenders = _contenders(tools)
    counts = _instructions(tools, contenders)
    times = _times(tools, effort, contenders)
    churn = _churn(tools, effort)
    rows = []
    for setup in contenders:
        base = setup.base or PLAIN
        extra = [f"{counts[setup.name][size] - counts[base.name][size]:+.2f}" for size in SIZES]
        rows.append([setup.name, base_name(base), *extra, *map(text.ratio, times[setup.name])])
    absolute = [[name, *(f"{counts[name][size]:.1f}" for size in SIZES)] for name in _bases(contenders)]
    bounds = []
    ours, off = counts["allocsample"][64] - counts["plain"][64], counts["allocsample, off"][64] - counts["plain"][64]
    bounds.append(Bound("un-sampled pair, instructions over glibc", ours, 9))
    bounds.append(
        Bound("un-sampled pair among 1,000 live objects, time over glibc", times["allocsample"][1].median, 1.04, "x")
    )
    bounds.append(Bound("pair while switched off, instructions over glibc", off, 3))
    rivals = [
        Rival(
            "un-sampled pair, instructions over the same allocator unprofiled",
            ours,
            setup.name,
            counts[setup.name][64] - counts[setup.base.name][64],
        )
        for setup in contenders
        if setup.base not in (None, PLAIN)
    ]
    text_parts = [
        "Instructions added to one `malloc` and `free` (callgrind, exact), and CPU time. One time is for 64-byte "
        "pairs in a tight loop, where a pair takes only 7 ns. The other is for replacing random ones of 1,000 live "
        "objects. All are relative to the same allocator without the profiler, and no sample is due.\n",
        text.table(["under", "over", *(f"{size} B" for size in SIZES), "time, tight loop", "time, 1,000 live"], rows),
        "\nThe allocators themselves, instructions a pair:\n",
        text.table(["allocator", *(f"{size} B" for size in SIZES)], absolute),
        "\nCPU time of replacing random ones of 200,000 objects of 64 to 191 bytes, at interval 512 KiB. The large "
        "blocks exist only to be sampled; nothing writes to them. The last column has blocks that one thread "
        "allocates and another frees:\n",
        text.table(
            ["under", "over", "no large blocks", "with some 20,000 live samples", "freed by another thread"],
            [_churn_row(name, base, figures) for name, base, figures in churn],
        ),
    ]
    crowded = {name: figures for name, _, figures in churn}.get("allocsample", {}).get("crowded")
    if crowded is not None:
        bounds.append(
            Bound("pair beside 20,000 live samples, working set beyond L2, time over glibc", crowded.median, 1.06, "x")
        )
    return Findings("Fast path", "\n".join(text_parts), bounds, rivals)


def base_name(base: Setup) -> str:
    """What glibc is called in tables."""
    return "glibc" if base == PLAIN else base.name


def _contenders(tools: Tools) -> list[Setup]:
    return [setups.passthrough(tools.shim), setups.allocsample_off(tools.agent), *tools.samplers(NEVER)]


def _bases(contenders: list[Setup]) -> list[str]:
    return list(dict.fromkeys((setup.base or PLAIN).name for setup in contenders))


def _pairs(tools: Tools, size: int, count: int) -> Workload:
    return Workload("pairs", (tools.program("pairs"), str(size), str(count), "1", "0", "0"))


def _instructions(tools: Tools, contenders: list[Setup]) -> dict[str, dict[int, float]]:
    everything = {setup.name: setup for setup in [*(s.base or PLAIN for s in contenders), *contenders]}
    keys = [(name, size, count) for name in everything for size in SIZES for count in COUNTED]
    jobs = [
        functools.partial(callgrind.count, tools, everything[name], _pairs(tools, size, count))
        for name, size, count in keys
    ]
    counted = {key: result.main for key, result in zip(keys, running.in_parallel(jobs))}
    few, many = COUNTED
    return {
        name: {size: (counted[name, size, many] - counted[name, size, few]) / (many - few) for size in SIZES}
        for name in everything
    }


def _times(tools: Tools, effort: Effort, contenders: list[Setup]) -> dict[str, tuple[Spread, Spread]]:
    tight = _pairs(tools, 64, effort.scaled(12_000_000))
    among = Workload("churn", (tools.program("churn"), "1000", str(effort.scaled(6_000_000)), "0", "0"))
    return {
        setup.name: (_ratio(tools, setup, tight, effort.rounds), _ratio(tools, setup, among, effort.rounds))
        for setup in contenders
    }


def _ratio(tools: Tools, setup: Setup, workload: Workload, rounds: int) -> Spread:
    def run(which: Setup):
        return functools.partial(running.run, tools, which, workload)

    return pair(run(setup.base or PLAIN), run(setup), rounds).ratio(work_cpu_s)


def _churn(tools: Tools, effort: Effort) -> list[tuple[str, str, dict[str, Spread]]]:
    interval = 512 * KIB
    replacements = str(effort.scaled(1_200_000))
    roomy = Workload("churn", (tools.program("churn"), "200000", replacements, "0", "0"))
    crowded = Workload("churn", (tools.program("churn"), "200000", replacements, "51000", str(256 * KIB)))
    crossing = Workload("cross_thread", (tools.program("cross_thread"), "64", str(effort.scaled(2_400_000))))
    found = []
    for setup in [setups.passthrough(tools.shim), *tools.samplers(interval)]:
        figures = {
            "roomy": _ratio(tools, setup, roomy, effort.many_rounds),
            "crossing": _ratio(tools, setup, crossing, effort.few_rounds),
        }
        if setup.base == PLAIN:
            figures["crowded"] = _ratio(tools, setup, crowded, effort.many_rounds)
        found.append((setup.name, base_name(setup.base or PLAIN), figures))
    return found


def _churn_row(name: str, base: str, figures: dict[str, Spread]) -> list[str]:
    return [
        name,
        base,
        *(text.ratio(figures[key]) if key in figures else "-" for key in ("roomy", "crowded", "crossing")),
    ]
