"""What a sample costs when many threads take them at once, and when as many processes do, which share nothing of ours."""

import functools

from bench import running, text
from bench.effort import Effort
from bench.pairing import Spread, pair, process_cpu_s, work_cpu_s
from bench.running import Outcome, Profiles, Workload
from bench.setups import NEVER, Setup
from bench.sizes import KIB
from bench.text import Bound, Findings
from bench.tools import Tools

INTERVAL = 4 * KIB
THREADS = (1, 2, 4, 8, 16)
PAIRS = 2_400_000
"""Of all threads together."""
SIZE = 64


def measure(tools: Tools, effort: Effort) -> Findings:
    """At an interval of 4 KiB, less the same run without samples."""
    rows, single, bounds = [], {}, []
    for busy, idle in zip(tools.samplers(INTERVAL), tools.samplers(NEVER)):
        runs = [(threads, 1) for threads in THREADS]
        if busy.name == "allocsample":
            runs.append((1, THREADS[-1]))
        for threads, processes in runs:
            count = effort.scaled(PAIRS) // (threads * processes)
            workload = Workload("pairs", (tools.program("pairs"), str(SIZE), str(count), "25", "0", "0", str(threads)))
            samples = count * threads * processes * SIZE / INTERVAL
            run = functools.partial(run_at_once, tools, workload, processes)
            profiles = Profiles()
            if busy.name == "allocsample":
                profiles = run(busy, read_profiles=True).profiles
                # A sample that finds no room has cost its stack all the same.
                samples = profiles.samples + profiles.lost
            pairs = pair(functools.partial(run, idle), functools.partial(run, busy), effort.few_rounds)
            on_thread: Spread = pairs.difference(work_cpu_s).scaled(1 / samples)
            in_all: Spread = pairs.difference(process_cpu_s).scaled(1 / samples)
            single.setdefault(busy.name, on_thread.median)
            growth = on_thread.median / single[busy.name]
            lost = f"{profiles.lost:,} of {samples:,.0f}" if busy.name == "allocsample" else "-"
            who = str(threads) if processes == 1 else f"{processes} processes of 1"
            rows.append([busy.name, who, text.nanoseconds(on_thread), text.nanoseconds(in_all), f"{growth:.2f}x", lost])
            if busy.name == "allocsample" and threads == THREADS[-1]:
                bounds.append(Bound("sample on one of 16 threads over a single thread's", growth, 1.5, "x"))
    lines = [
        "CPU time per sample of 64-byte pairs at depth 25, by number of threads, at interval 4 KiB. *Lost* samples "
        "found the ring full; a profile counts them. Processes share only the machine, so a higher cost per sample "
        "in many processes than in one is not caused by the profiler.\n",
        text.table(["profiler", "threads", "on the programs' threads", "in all", "over one thread", "lost"], rows),
    ]
    return Findings("Threads", "\n".join(lines), bounds)


def run_at_once(
    tools: Tools, workload: Workload, processes: int, setup: Setup, read_profiles: bool = False
) -> Outcome:
    """Runs the workload in so many processes at the same time: what they cost together."""
    run = functools.partial(running.run, tools, setup, workload, read_profiles)
    outcomes = running.in_parallel([run] * processes, workers=processes)
    profiles = [outcome.profiles for outcome in outcomes]
    return Outcome(
        cpu_s=sum(outcome.cpu_s for outcome in outcomes),
        wall_s=max(outcome.wall_s for outcome in outcomes),
        stdout=f"cpu_s {sum(map(work_cpu_s, outcomes)):.9f}\n",
        profiles=Profiles(
            samples=sum(it.samples for it in profiles),
            lost=sum(it.lost for it in profiles),
            file_bytes=sum(it.file_bytes for it in profiles),
        ),
    )
