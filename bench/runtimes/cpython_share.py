"""What CPython takes of the cost as soon as anybody wraps its allocators, by functions that only hand on.

In instructions: the difference is a hundredth, which no clock sees here.
"""

import pathlib
import tempfile

from bench import callgrind, tools
from bench.running import Profiles
from bench.runtimes import programs

INTERVALS = ("512K", "64K", "32K")


def count(runtime, variables):
    """Instructions of all threads."""
    with tempfile.TemporaryDirectory() as directory:
        counting = callgrind.command(tools.valgrind(), pathlib.Path(directory))
        programs.run([*counting, *runtime.command()], variables, directory)
        return callgrind.read_counts(pathlib.Path(directory), Profiles()).total


def section(scratch, agent):
    """Markdown; None without valgrind."""
    wrapper = programs.shim(scratch, "python_wrapper")
    if wrapper is None or tools.valgrind() is None:
        return None
    lines = [
        "Instructions relative to the plain program, all threads together (callgrind). *Wrapped, no more* wraps the "
        "allocators with functions that only forward.",
        "",
        "| program | wrapped, no more | allocsample, 512 KiB | 64 KiB | 32 KiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for runtime, name in ((programs.words(200), "words of a text, JSON"), (programs.json_tool(scratch), "json.tool")):
        plain = count(runtime, {})
        wrapped = count(runtime, {"LD_PRELOAD": str(wrapper)})
        ours = [count(runtime, {**runtime.under_agent(agent, interval), "ALLOCSAMPLE_SEED": "1"}) for interval in INTERVALS]
        cells = [f"{instructions / plain:.3f}x" for instructions in (wrapped, *ours)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
