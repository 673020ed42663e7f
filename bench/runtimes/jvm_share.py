"""What the JVM takes of the cost for its own sampler, by an agent that does nothing when it is called."""

import pathlib
import shutil

from bench.runtimes import programs
from bench.runtimes.programs import Own, cell

INTERVALS = ("512K", "64K", "32K")
SETUPS = ("empty", "tag", "ours")


def compiled(scratch):
    """bench/shim/jvm_sampler.c; None if there is nothing to compile it with."""
    compiler = shutil.which("javac")
    headers = compiler and pathlib.Path(compiler).resolve().parent.parent / "include"
    if not headers or not (headers / "jvmti.h").exists():
        return None
    return programs.shim(scratch, "jvm_sampler", f"-I{headers}", f"-I{headers}/linux")


def setups(runtime, agent, sampler):
    made = [("plain", runtime.command(), {})]
    for interval in INTERVALS:
        mean = int(interval.removesuffix("K")) * 1024
        made += [
            (f"{interval}, empty", runtime.command(Own("", (f"-agentpath:{sampler}={mean}",))), {}),
            (f"{interval}, tag", runtime.command(Own("", (f"-agentpath:{sampler}={mean},tag",))), {}),
            (f"{interval}, ours", runtime.command(), runtime.under_agent(agent, interval)),
        ]
    return made


def section(scratch, agent, rounds):
    """Markdown; None without a JDK."""
    sampler = compiled(scratch)
    if sampler is None:
        return None
    lines = [
        f"The JVM's own part of that cost, in {rounds} rounds. One agent has a callback that does nothing. Another "
        "marks every sample and is notified of its death, as every profiler of live objects must be. The programs "
        "are binary trees as in GCBench, and the same 25 calls deeper.",
        "",
        "| program | interval | callback that does nothing | and is told of deaths | allocsample |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, calls in (("as GCBench", 0), ("25 calls deeper", 25)):
        runtime = programs.trees(scratch, name, calls)
        found = programs.measure(runtime, setups(runtime, agent, sampler), rounds)
        for interval in INTERVALS:
            cells = [cell(found[f"{interval}, {setup}"]) for setup in SETUPS]
            lines.append(f"| {name} | {interval.removesuffix('K')} KiB | {' | '.join(cells)} |")
    return "\n".join(lines)
