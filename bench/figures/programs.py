"""What sampling costs programs that people run."""

import functools

from bench import callgrind, running, setups, text, workloads
from bench.effort import Effort
from bench.pairing import Spread, against, process_cpu_s
from bench.running import Profiles, RunFailed, Workload
from bench.setups import KIB, PLAIN, Setup
from bench.text import Bound, Findings, Rival
from bench.tools import Tools, say

INTERVALS = (512 * KIB, 32 * KIB)
BOUNDS = {512 * KIB: 0.3, 32 * KIB: 1.5}
"""Per cent of the instructions."""
TIMED_SCALE = 4
TRACED_SCALE = 1

Key = tuple[str, int]
"""Setup's name and interval."""

INSTRUCTIONS: Key = ("instructions without any profiler", -1)


def measure(tools: Tools, effort: Effort) -> Findings:
    """Instructions where callgrind runs, CPU time everywhere, and what is in the profiles."""
    contenders = [setups.passthrough(tools.shim)] + [s for interval in INTERVALS for s in tools.samplers(interval)]
    # Who does not sample the start of a process would be compared at hardly any samples: these runs are short.
    early = [setup for setup in contenders if setup.unsampled_bytes == 0]
    counted, lines, bounds, rivals = _counted(tools, effort, early), [], [], []
    starts = _starts(tools, counted)
    lines.append(
        "Instructions of the whole process, all threads, over the same allocator without the profiler (callgrind). redis "
        "is linked with jemalloc, which is its plain state here, and gets fixed commands in step. *Start* is what of ours is "
        "there without any sample: what `/bin/true` pays. tcmalloc is missing because it does not sample the first 16 MiB "
        "of a process, which is most of these runs.\n"
    )
    head = ["program", *(_column(setup) for setup in early), "start"]
    rows = [
        [name, *(_percent(figures, setup) for setup in early), text.percent(starts[name])]
        for name, figures in counted.items()
    ]
    lines.append(text.table(head, rows))
    for name, figures in counted.items():
        for interval, most in BOUNDS.items():
            ours = figures["allocsample", interval] * 100
            bounds.append(Bound(f"{name}, interval {text.size(interval)}, instructions added", ours, most, " %"))
            rivals += [
                Rival(f"{name}, {text.size(interval)}, instructions added", ours, peer, added * 100, " %")
                for (peer, at), added in figures.items()
                if at == interval and peer != "allocsample"
            ]
    timed = _timed(tools, effort, contenders)
    if tools.heaptrack:
        contenders = [*contenders, setups.heaptrack(tools.heaptrack)]
    lines.append("\nThe same programs with more to do, in CPU time; a few per cent either way is noise here.\n")
    for interval in INTERVALS:
        rivals += [
            Rival(f"{name}, {text.size(interval)}, CPU", figures["allocsample", interval].median, peer, ratio.median, "x")
            for name, figures in timed.items()
            for (peer, at), ratio in figures.items()
            if at == interval and peer != "allocsample"
        ]
    head = ["program", *(_column(setup) for setup in contenders)]
    lines.append(text.table(head, [[name, *(_ratio(figures, s) for s in contenders)] for name, figures in timed.items()]))
    if tools.memray_python:
        lines.append("\nPython's own tools on the same script, over the interpreter without them, in CPU time:\n")
        lines.append(text.table(["tool", "CPU"], _python_tools(tools, effort)))
    lines.append(
        "\nWhat allocsample wrote for these runs. A run that ends before a quarter of the ring is used leaves the ring's "
        "records as they are, which take more room.\n"
    )
    recorded = _recorded(tools, effort)
    lines.append(
        text.table(
            ["program", "interval", "samples", "lost", "file", "bytes a sample"],
            [
                [name, text.size(interval), f"{found.samples:,}", f"{found.lost:,}", f"{found.file_bytes:,}",
                 f"{found.file_bytes / max(found.samples, 1):.0f}"]
                for (name, interval), found in recorded.items()
            ],
        )
    )
    bounds += [
        Bound(f"bytes on disk a sample, {name}, {text.size(interval)}", found.file_bytes / max(found.samples, 1), 30)
        for (name, interval), found in recorded.items()
        if found.samples >= 100
    ]
    return Findings("Real programs", "\n".join(lines), bounds, rivals)


def _column(setup: Setup) -> str:
    return setup.name if setup.interval_bytes is None else f"{setup.name}, {text.size(setup.interval_bytes)}"


def _key(setup: Setup) -> Key:
    return setup.name, setup.interval_bytes or 0


def _percent(figures: dict[Key, float], setup: Setup) -> str:
    return text.percent(figures[_key(setup)]) if _key(setup) in figures else "-"


def _ratio(figures: dict[Key, Spread], setup: Setup) -> str:
    return text.ratio(figures[_key(setup)]) if _key(setup) in figures else "-"


def _counted(tools: Tools, effort: Effort, contenders: list[Setup]) -> dict[str, dict[Key, float]]:
    programs = workloads.real_programs(tools, 1)
    programs.pop("java", None)  # its compiler and collector do not run under valgrind in finite time
    if effort.is_quick:
        programs = {name: programs[name] for name in ("sqlite3", "jq") if name in programs}
    elif server := workloads.redis(tools, None):
        programs["redis"] = server
    bases = {_key(base): base for base in ((setup.base or PLAIN) for setup in contenders)}
    everything = {**bases, **{_key(setup): setup for setup in contenders}}
    keys = [(name, key) for name in programs for key in everything]
    jobs = [functools.partial(_count, tools, everything[key], programs[name]) for name, key in keys]
    counts = dict(zip(keys, running.in_parallel(jobs)))
    found: dict[str, dict[Key, float]] = {name: {} for name in programs}
    for name in programs:
        found[name][INSTRUCTIONS] = counts[name, _key(PLAIN)] or float("inf")
    for setup in contenders:
        for name in programs:
            with_it, without = counts[name, _key(setup)], counts[name, _key(setup.base or PLAIN)]
            if with_it and without:
                found[name][_key(setup)] = with_it / without - 1
    return found


def _starts(tools: Tools, counted: dict[str, dict[Key, float]]) -> dict[str, float]:
    true = Workload("true", ("/bin/true",))
    added = callgrind.count(tools, tools.ours(512 * KIB), true).total - callgrind.count(tools, PLAIN, true).total
    return {name: added / figures[INSTRUCTIONS] for name, figures in counted.items()}


def _count(tools: Tools, setup: Setup, workload: Workload) -> int | None:
    try:
        return callgrind.count(tools, setup, workload).total
    except RunFailed as failure:
        say(f"left out: {failure}")
        return None


def _all_timed(tools: Tools, effort: Effort, scale: int) -> dict[str, Workload]:
    programs = workloads.real_programs(tools, scale)
    if effort.is_quick:
        programs = {name: programs[name] for name in ("sqlite3", "jq", "cc1") if name in programs}
    elif server := workloads.redis(tools, 20_000 * scale):
        programs["redis"] = server
    return programs


def _timed(tools: Tools, effort: Effort, contenders: list[Setup]) -> dict[str, dict[Key, Spread]]:
    rounds = 1 if effort.is_quick else 3
    found: dict[str, dict[Key, Spread]] = {}
    for name, workload in _all_timed(tools, effort, 1 if effort.is_quick else TIMED_SCALE).items():
        found[name] = _compare(tools, contenders, workload, rounds)
    if tools.heaptrack:
        tracer = setups.heaptrack(tools.heaptrack)
        for name, workload in _all_timed(tools, effort, TRACED_SCALE).items():
            if workload.drive is None:
                found[name] |= _compare(tools, [tracer], workload, 1)
    return found


def _compare(tools: Tools, contenders: list[Setup], workload: Workload, rounds: int) -> dict[Key, Spread]:
    def run(setup: Setup):
        return functools.partial(running.run, tools, setup, workload)

    found: dict[Key, Spread] = {}
    for base in dict.fromkeys(setup.base or PLAIN for setup in contenders):
        group = [setup for setup in contenders if (setup.base or PLAIN) == base]
        try:
            pairs = against(run(base), [run(setup) for setup in group], rounds)
        except RunFailed as failure:
            say(f"left out: {failure}")
            continue
        found |= {_key(setup): pair.ratio(process_cpu_s) for setup, pair in zip(group, pairs)}
    return found


def _python_tools(tools: Tools, effort: Effort) -> list[list[str]]:
    python = tools.memray_python or ""
    workload = Workload("python3", (str(workloads.INPUTS / "words.py"), str(8 * TIMED_SCALE)))
    ours = tools.ours(512 * KIB)
    base = Setup("plain", wrapper=(python,))
    # The same interpreter for all.
    contenders = [
        Setup(ours.name, ours.preload, ours.environment, (python,), base, ours.interval_bytes),
        setups.memray(python),
        setups.memray(python, "--native"),
        setups.memray(python, "--trace-python-allocators"),
        setups.tracemalloc(python, 1),
        setups.tracemalloc(python, 25),
    ]
    found = _compare(tools, contenders, workload, 1 if effort.is_quick else 3)
    return [[_column(setup), text.ratio(found[_key(setup)])] for setup in contenders if _key(setup) in found]


def _recorded(tools: Tools, effort: Effort) -> dict[tuple[str, int], Profiles]:
    programs = _all_timed(tools, effort, 1 if effort.is_quick else TIMED_SCALE)
    return {
        (name, interval): running.run(tools, tools.ours(interval), workload, read_profiles=True).profiles
        for name, workload in programs.items()
        for interval in INTERVALS
    }
