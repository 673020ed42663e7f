"""How many instructions sampling adds to programs that people run."""

import functools

from bench import callgrind, running, setups, sizes, text, workloads
from bench.effort import Effort
from bench.running import RunFailed, Workload
from bench.setups import PLAIN, Setup
from bench.sizes import KIB
from bench.text import Bound, Findings, Rival
from bench.tools import Tools, say

BOUNDS = {512 * KIB: 0.3, 32 * KIB: 1.5}
"""Per cent of the instructions, by interval."""

DORMANT_BOUND = 1.0
"""Per cent of the instructions, of an agent that waits to be told to start."""

EXPLANATION = """\
Instructions of the whole process, all threads, relative to the same allocator without the profiler (callgrind). redis
is linked with jemalloc, its plain state here, and gets a fixed sequence of commands. *Start* is the cost without any
sample: what `/bin/true` pays. tcmalloc is missing because it does not sample the first 16 MiB of a process, which is
most of these runs.
"""


def measure(tools: Tools, effort: Effort) -> Findings:
    """At two intervals, ours, the bare shim and the peers."""
    # Who does not sample the start of a process would be compared at hardly any samples.
    samplers = [s for interval in BOUNDS for s in tools.samplers(interval) if s.unsampled_bytes == 0]
    dormant = setups.allocsample_dormant(tools.agent)
    contenders = [setups.passthrough(tools.shim), dormant, *samplers]
    plain, added = _count_all(tools, effort, contenders)
    start = callgrind.count(tools, tools.ours(512 * KIB), TRUE).total - callgrind.count(tools, PLAIN, TRUE).total
    rows = []
    for name, instructions in plain.items():
        cells = [text.percent(added[name, setup]) if (name, setup) in added else "-" for setup in contenders]
        rows.append([name, *cells, text.percent(start / instructions)])
    table = text.table(["program", *(setup.title for setup in contenders), "start"], rows)
    bounds, rivals = [], []
    for name in plain:
        if (name, dormant) in added:
            bounds.append(Bound(f"{name}, dormant, instructions added", added[name, dormant] * 100, DORMANT_BOUND, " %"))
        for interval, most in BOUNDS.items():
            found = {
                s.name: added[name, s] * 100 for s in samplers if s.interval_bytes == interval and (name, s) in added
            }
            figure = f"{name}, {sizes.text(interval)}, instructions added"
            if ours := found.pop("allocsample", None):
                bounds.append(Bound(figure, ours, most, " %"))
                rivals += [Rival(figure, ours, peer, theirs, " %") for peer, theirs in found.items()]
    return Findings("Real programs: instructions", f"{EXPLANATION}\n{table}", bounds, rivals)


TRUE = Workload("true", ("/bin/true",))

Added = dict[tuple[str, Setup], float]
"""By program and setup, what is added, as a fraction."""


def _count_all(tools: Tools, effort: Effort, contenders: list[Setup]) -> tuple[dict[str, int], Added]:
    """Instructions of the programs alone, and what the setups add to their bases'."""
    programs = workloads.real_programs(tools, 1)
    programs.pop("java", None)  # it does not run under valgrind in finite time
    if effort.is_quick:
        programs = {name: programs[name] for name in ("sqlite3", "jq") if name in programs}
    elif server := workloads.redis(tools, None):
        programs["redis"] = server
    everything = list(dict.fromkeys([PLAIN, *((setup.base or PLAIN) for setup in contenders), *contenders]))
    keys = [(name, setup) for name in programs for setup in everything]
    jobs = [functools.partial(_count, tools, setup, programs[name]) for name, setup in keys]
    counts = {key: count for key, count in zip(keys, running.in_parallel(jobs), strict=True) if count}
    added = {
        (name, setup): counts[name, setup] / counts[name, setup.base or PLAIN] - 1
        for name in programs
        for setup in contenders
        if (name, setup) in counts and (name, setup.base or PLAIN) in counts
    }
    return {name: counts[name, PLAIN] for name in programs if (name, PLAIN) in counts}, added


def _count(tools: Tools, setup: Setup, workload: Workload) -> int | None:
    try:
        return callgrind.count(tools, setup, workload).total
    except RunFailed as failure:
        say(f"left out: {failure}")
        return None
