"""What it costs a small program to be started under the agent, and to end."""

import functools

from bench import callgrind, running, setups, text
from bench.effort import Effort
from bench.figures.fast_path import base_name
from bench.pairing import Spread
from bench.running import Workload
from bench.setups import PLAIN
from bench.sizes import KIB
from bench.text import Bound, Findings, Rival
from bench.tools import Tools

TRUE = Workload("true", ("/bin/true",))


def measure(tools: Tools, effort: Effort) -> Findings:
    """Wall-clock time of `/bin/true`, in turns."""
    contenders = [
        setups.passthrough(tools.shim),
        setups.allocsample_off(tools.agent),
        *tools.samplers(512 * KIB),
    ]
    # At interval 1 even this program is sampled: profile, ring, and all that follows.
    recording = tools.ours(1)
    labelled = [(setup.name, setup) for setup in contenders] + [("allocsample, with a first sample", recording)]
    if tools.heaptrack:
        labelled.append(("heaptrack (a script and two programs)", setups.heaptrack(tools.heaptrack)))
    counted = running.in_parallel(
        [functools.partial(callgrind.count, tools, setup, TRUE) for _, setup in labelled if not setup.wrapper]
        + [
            functools.partial(callgrind.count, tools, setup.base or PLAIN, TRUE)
            for _, setup in labelled
            if not setup.wrapper
        ]
    )
    half = len(counted) // 2
    added_counts = [with_it.total - without.total for with_it, without in zip(counted[:half], counted[half:])]
    rows, bounds, rivals, ours_ms = [], [], [], 0.0
    for number, (label, setup) in enumerate(labelled):
        wall, cpu = _added(tools, setup, 15 if effort.is_quick or setup.wrapper else 100)
        count = f"{added_counts[number]:+,}" if number < half else "-"
        rows.append([label, base_name(setup.base or PLAIN), _milliseconds(wall), _milliseconds(cpu), count])
        if label == "allocsample":
            ours_ms = wall.median * 1e3
        elif number < half and setup.base not in (None, PLAIN):
            rivals.append(Rival("start and end of `/bin/true`, added", ours_ms, setup.name, wall.median * 1e3, " ms"))
        if setup.name == "allocsample":
            bounds.append(Bound(f"start and end of `/bin/true` under {label}", wall.median * 1e3, 5, " ms"))
    lines = [
        "Wall-clock time, CPU time and instructions that the profiler adds to `/bin/true`, from start to end.\n",
        text.table(["under", "over", "wall clock", "CPU", "instructions"], rows),
    ]
    return Findings("Start and end", "\n".join(lines), bounds, rivals)


def _milliseconds(spread: Spread) -> str:
    return f"{spread.median * 1e3:+.2f} ms ({spread.low * 1e3:+.2f} to {spread.high * 1e3:+.2f})"


def _added(tools: Tools, setup, times: int) -> tuple[Spread, Spread]:
    walls, cpus = [], []
    for _ in range(times):
        without = running.run(tools, setup.base or PLAIN, TRUE)
        with_it = running.run(tools, setup, TRUE)
        walls.append(with_it.wall_s - without.wall_s)
        cpus.append(with_it.cpu_s - without.cpu_s)
    return Spread.of(walls), Spread.of(cpus)
