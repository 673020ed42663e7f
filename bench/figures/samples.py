"""What one sample costs, by the stack that it has to capture."""

import dataclasses
import functools

from bench import callgrind, running, text
from bench.effort import Effort
from bench.pairing import Spread, against, pair, process_cpu_s, work_cpu_s
from bench.running import Workload
from bench.setups import NEVER, Setup
from bench.sizes import KIB
from bench.text import Bound, Findings, Rival
from bench.tools import Tools

INTERVAL = 4 * KIB
SIZE = 64
FRAMES_BELOW = 5
"""Frames of the C library, `main` and its callee under those that the program makes."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """A stack of so many frames, of which the topmost differ from sample to sample."""

    depth: int
    changed: int
    stacks: int = 0
    """How many such stacks there are; 0: hardly any comes twice."""

    @property
    def name(self) -> str:
        """As in the tables."""
        frames = self.depth + FRAMES_BELOW
        if self.changed == 0:
            return f"{frames} frames, the same"
        return f"{frames} frames, top {self.changed} {f'one of {self.stacks}' if self.stacks else 'never seen'}"


STACKS = 256
UNCHANGED = (Shape(25, 0), Shape(35, 0))
CHANGED = (Shape(25, 24, STACKS), Shape(25, 24), Shape(35, 34, STACKS))
DEEP_CHANGED = Shape(500, 24, STACKS)
SHAPES = (
    *UNCHANGED,
    Shape(25, 4, STACKS),
    *CHANGED,
    Shape(500, 0),
    DEEP_CHANGED,
    Shape(500, 499),
)
PEER_SHAPES = (Shape(25, 0), Shape(25, 24, STACKS), DEEP_CHANGED)
QUICK_SHAPES = (Shape(25, 0), Shape(25, 24, STACKS))


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one sample and its free."""

    on_thread: Spread
    in_all: Spread
    capture: Spread | None
    thread_instructions: float | None
    other_instructions: float | None


def measure(tools: Tools, effort: Effort) -> Findings:
    """At an interval of 4 KiB, less the same run without samples."""
    shapes, peer_shapes = (QUICK_SHAPES, QUICK_SHAPES) if effort.is_quick else (SHAPES, PEER_SHAPES)
    subjects = [(tools.ours(INTERVAL), tools.ours(NEVER), shape) for shape in shapes]
    pair_up = zip(tools.samplers(INTERVAL)[1:], tools.samplers(NEVER)[1:])
    subjects += [(busy, idle, shape) for busy, idle in pair_up for shape in peer_shapes]
    counted = _count_all(tools, effort, subjects)
    costs = {}
    for (busy, idle, shape), instructions in zip(subjects, counted):
        costs[busy.name, shape] = _cost(tools, effort, busy, idle, shape, instructions)
    rows = [
        [
            name,
            shape.name,
            text.nanoseconds(cost.capture) if cost.capture else "-",
            text.nanoseconds(cost.on_thread),
            text.nanoseconds(cost.in_all),
            f"{cost.thread_instructions:,.0f}",
            f"{cost.other_instructions:,.0f}",
        ]
        for (name, shape), cost in costs.items()
    ]
    head = [
        "profiler",
        "stack",
        "capture",
        "on the program's thread",
        "in all",
        "instructions on the thread",
        "elsewhere",
    ]
    lines = [
        "Total cost of one sample of a 64-byte block and its free: the difference between a run at interval 4 KiB "
        "and one without samples, divided by the number of samples. *One of 256*: the frames that change belong to "
        "one of 256 stacks. *Never seen*: the frames have not occurred together before. *Capture* is the part for "
        "the stack (relative to a run that records no stacks). *In all* includes the thread that writes the "
        "profile. The peers have no such thread; their *in all* includes start and end.\n",
        text.table(head, rows),
        "\njemalloc keeps at most 128 frames of a stack and tcmalloc 31; allocsample keeps 512 by default. The peers' "
        "figures for 505 frames are for the frames that they keep. tcmalloc does not sample the first 16 MiB of a "
        "process; its figures take that into account.\n",
    ]
    return Findings("One sample", "\n".join(lines), _bounds(costs), _rivals(costs))


def _bounds(costs: dict[tuple[str, Shape], Cost]) -> list[Bound]:
    bounds = []
    for shape in (*UNCHANGED, *CHANGED):
        capture_us = 0.06 if shape.changed == 0 else 0.3
        cost = costs.get(("allocsample", shape))
        if cost and cost.capture:
            bounds.append(Bound(f"capture, {shape.name}", cost.capture.median * 1e6, capture_us, " us"))
    for shape in (*UNCHANGED, *CHANGED):
        cost = costs.get(("allocsample", shape))
        if cost:
            bounds.append(
                Bound(f"sample on the program's thread, {shape.name}", cost.on_thread.median * 1e6, 0.8, " us")
            )
            bounds.append(Bound(f"sample with the drain thread, {shape.name}", cost.in_all.median * 1e6, 0.8, " us"))
            total = cost.thread_instructions + cost.other_instructions
            bounds.append(Bound(f"sample with the drain thread, {shape.name}, instructions", total, 2500))
    cost = costs.get(("allocsample", DEEP_CHANGED))
    if cost:
        bounds.append(
            Bound(f"sample on the program's thread, {DEEP_CHANGED.name}", cost.on_thread.median * 1e6, 1.5, " us")
        )
    return bounds


def _rivals(costs: dict[tuple[str, Shape], Cost]) -> list[Rival]:
    return [
        Rival(
            f"sample in all, {shape.name}",
            costs["allocsample", shape].in_all.median * 1e9,
            name,
            cost.in_all.median * 1e9,
            " ns",
        )
        for (name, shape), cost in costs.items()
        if name != "allocsample" and ("allocsample", shape) in costs
    ]


def _pairs(tools: Tools, shape: Shape, count: int) -> Workload:
    words = (SIZE, count, shape.depth, shape.changed, shape.stacks)
    return Workload("pairs", (tools.program("pairs"), *map(str, words)))


def _count_all(tools: Tools, effort: Effort, subjects: list[tuple[Setup, Setup, Shape]]) -> list[tuple[float, float]]:
    """Instructions a sample, on the thread and elsewhere.

    From the difference of two runs: what is done once (the first sample creates the profile) does not count. Both have
    filled a quarter of the ring, where stacks change, so that the drain thread is at work: what the shorter one packs
    by itself at its end would be taken off the program's thread.
    """

    def one(busy: Setup, idle: Setup, shape: Shape) -> tuple[float, float]:
        few, many = (300_000, 450_000) if shape.changed else (100_000, 200_000)
        if effort.is_quick or shape.changed > 100:
            # Descending hundreds of frames for each pair takes callgrind long.
            few, many = 50_000, 100_000
        skipped = -(-busy.unsampled_bytes // SIZE)
        few, many = few + skipped, many + skipped
        at = {
            (setup.interval_bytes, count): callgrind.count(
                tools, setup, _pairs(tools, shape, count), read_profiles=setup.name == "allocsample"
            )
            for setup in (busy, idle)
            for count in (few, many)
        }

        def added(kind) -> float:
            per_setup = [
                kind(at[setup.interval_bytes, many]) - kind(at[setup.interval_bytes, few]) for setup in (busy, idle)
            ]
            return per_setup[0] - per_setup[1]

        samples = added(lambda count: count.profiles.samples) or (many - few) * SIZE / INTERVAL
        return added(lambda count: count.main) / samples, added(lambda count: count.others) / samples

    return running.in_parallel([functools.partial(one, *subject) for subject in subjects])


def _cost(
    tools: Tools, effort: Effort, busy: Setup, idle: Setup, shape: Shape, instructions: tuple[float, float]
) -> Cost:
    # Descending 500 frames is the program's own work, and takes longer than the pair.
    count = effort.scaled(1_200_000 if shape.changed < 100 else 60_000)
    workload = _pairs(tools, shape, count)

    def run(setup: Setup):
        return functools.partial(running.run, tools, setup, workload)

    if busy.name != "allocsample":
        pairs, capture = pair(run(idle), run(busy), effort.few_rounds), None
        samples = (count * SIZE - busy.unsampled_bytes) / INTERVAL
    else:
        samples = running.run(tools, busy, workload, read_profiles=True).profiles.samples
        without_stacks = tools.ours(INTERVAL, UNWIND="none")
        pairs, shallow = against(run(idle), [run(busy), run(without_stacks)], effort.few_rounds)
        capture = pairs.without(shallow).difference(work_cpu_s).scaled(1 / samples)
    return Cost(
        pairs.difference(work_cpu_s).scaled(1 / samples),
        pairs.difference(process_cpu_s).scaled(1 / samples),
        capture,
        *instructions,
    )
