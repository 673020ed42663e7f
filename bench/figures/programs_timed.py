"""What sampling costs programs that people run, in CPU time, beside those who record every allocation."""

import functools

from bench import running, setups, sizes, text, workloads
from bench.effort import Effort
from bench.pairing import Spread, against, process_cpu_s
from bench.running import RunFailed, Workload
from bench.setups import PLAIN, Setup
from bench.sizes import KIB
from bench.text import Findings, Rival
from bench.tools import Tools, say

INTERVALS = (512 * KIB, 32 * KIB)
SCALE = 2
SCALE_TRACED = 1


def measure(tools: Tools, effort: Effort) -> Findings:
    """At two intervals."""
    samplers = [setup for interval in INTERVALS for setup in tools.samplers(interval)]
    contenders = [setups.passthrough(tools.shim), *samplers]
    rounds = 1 if effort.is_quick else 3
    ratios = {
        name: compare(tools, contenders, workload, rounds)
        for name, workload in all_programs(tools, effort, 1 if effort.is_quick else SCALE).items()
    }
    if tools.heaptrack:
        tracer = setups.heaptrack(tools.heaptrack)
        contenders.append(tracer)
        for name, workload in all_programs(tools, effort, SCALE_TRACED).items():
            if workload.drive is None:
                ratios[name] |= compare(tools, [tracer], workload, 1)
    rows = [
        [name, *(text.ratio(found[setup]) if setup in found else "-" for setup in contenders)]
        for name, found in ratios.items()
    ]
    lines = [
        "CPU time relative to the same allocator without the profiler. The programs are the same with more to do, "
        "and java, which compiles and runs a source file. redis is driven by redis-benchmark. A few per cent either "
        "way are noise.\n",
        text.table(["program", *(setup.title for setup in contenders)], rows),
    ]
    if tools.memray_python:
        lines.append("\nPython's own tools on the same script, relative to the interpreter without them:\n")
        lines.append(text.table(["tool", "CPU"], _python_tools(tools, tools.memray_python)))
    return Findings("Real programs: CPU time", "\n".join(lines), rivals=_rivals(samplers, ratios))


def all_programs(tools: Tools, effort: Effort, scale: int) -> dict[str, Workload]:
    """With so much to do."""
    programs = workloads.real_programs(tools, scale)
    if effort.is_quick:
        programs = {name: programs[name] for name in ("sqlite3", "jq", "cc1") if name in programs}
    elif server := workloads.redis(tools, 10_000 * scale):
        programs["redis"] = server
    return programs


def compare(tools: Tools, contenders: list[Setup], workload: Workload, rounds: int) -> dict[Setup, Spread]:
    """CPU time over the base's; contenders with one base are measured together."""

    def run(setup: Setup):
        return functools.partial(running.run, tools, setup, workload)

    found: dict[Setup, Spread] = {}
    for base in dict.fromkeys(setup.base or PLAIN for setup in contenders):
        group = [setup for setup in contenders if (setup.base or PLAIN) == base]
        try:
            pairs = against(run(base), [run(setup) for setup in group], rounds)
        except RunFailed as failure:
            say(f"left out: {failure}")
            continue
        found |= {setup: pair.ratio(process_cpu_s) for setup, pair in zip(group, pairs, strict=True)}
    return found


def _rivals(samplers: list[Setup], ratios: dict[str, dict[Setup, Spread]]) -> list[Rival]:
    rivals = []
    for name, found in ratios.items():
        for interval in INTERVALS:
            medians = {s.name: found[s].median for s in samplers if s.interval_bytes == interval and s in found}
            ours = medians.pop("allocsample", None)
            if ours is not None:
                figure = f"{name}, {sizes.text(interval)}, CPU"
                rivals += [Rival(figure, ours, peer, theirs, "x") for peer, theirs in medians.items()]
    return rivals


def _python_tools(tools: Tools, python: str) -> list[list[str]]:
    # The same interpreter for all.
    base = Setup("plain", wrapper=(python,))
    ours = tools.ours(512 * KIB)
    contenders = [
        Setup(ours.name, ours.preload, ours.environment, (python,), base, ours.interval_bytes),
        setups.memray(python),
        setups.memray(python, "--native"),
        setups.memray(python, "--trace-python-allocators"),
        setups.tracemalloc(python, 1),
        setups.tracemalloc(python, 25),
    ]
    workload = Workload("python3", (str(workloads.INPUTS / "words.py"), str(8 * SCALE)))
    found = compare(tools, contenders, workload, rounds=3)
    return [[setup.title, text.ratio(found[setup])] for setup in contenders if setup in found]
