"""The command line of scripts/bench."""

import argparse
import time
from collections.abc import Callable

from bench import page, tools
from bench.effort import Effort
from bench.figures import (
    cold,
    curve,
    depth,
    disk,
    fast_path,
    loading,
    memory,
    programs_counted,
    programs_timed,
    samples,
    threads,
)
from bench.text import Findings

PARTS: dict[str, Callable[[tools.Tools, Effort], Findings]] = {
    "fast_path": fast_path.measure,
    "samples": samples.measure,
    "cold": cold.measure,
    "depth": depth.measure,
    "threads": threads.measure,
    "programs_counted": programs_counted.measure,
    "programs_timed": programs_timed.measure,
    "disk": disk.measure,
    "curve": curve.measure,
    "memory": memory.measure,
    "loading": loading.measure,
}

LEFT_OUT_WHEN_QUICK = ("curve",)


def main() -> int:
    """Measures, prints, writes; the exit status."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measures what allocsample costs, and writes docs/cost.md and docs/cost.svg."
    )
    parser.add_argument("--quick", action="store_true", help="two minutes: fewer rounds, and docs/ stays as it is")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=list(PARTS), help=f"one part: {', '.join(PARTS)}"
    )
    options = parser.parse_args()
    chosen = options.only or [name for name in PARTS if not (options.quick and name in LEFT_OUT_WHEN_QUICK)]
    is_whole = not options.quick and not options.only
    found_tools = tools.prepare(not options.quick, with_memray="programs_timed" in chosen and not options.quick)
    start_s = time.monotonic()
    findings = []
    for name in chosen:
        tools.say(f"{name} (after {time.monotonic() - start_s:.0f} s)")
        found = PARTS[name](found_tools, Effort(options.quick))
        findings.append(found)
        print(f"## {found.title}\n\n{found.text}", flush=True)
    print(page.bounds(findings))
    print(page.beside_peers(findings))
    if is_whole:
        page.write(findings)
    tools.say(f"done after {time.monotonic() - start_s:.0f} s")
    return 0
