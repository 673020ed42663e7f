"""Programs of pyperformance, against memray and tracemalloc.

memray's tracing makes a frame object of each call, and counts it: a program with few calls is compared with it. With tracemalloc
what lives at the end is compared."""

import json

from .opinion import CACHE, Missing, Opinion, profile, run, top_lines

PYTHON = CACHE / "python/bin/python3"
# Runs a program, says what lives then if that is traced, and leaves without taking the interpreter down.
KEEPS = """
import gc, json, os, runpy, sys, tracemalloc
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    pass
gc.collect()
if tracemalloc.is_tracing():
    lines = tracemalloc.take_snapshot().statistics("lineno")
    found = [[row.traceback[0].filename, row.traceback[0].lineno, row.size] for row in lines]
    with open("traced.json", "w") as file:
        json.dump(found, file)
os._exit(0)
"""
ONCE = ["--worker", "-w0", "-n1"]
OF_PYTHON = "(file LIKE '%.py' OR file LIKE '<frozen %')"


def benchmark(name):
    packages = next((CACHE / "python/lib").glob("python3*/site-packages"))
    return str(packages / f"pyperformance/data-files/benchmarks/bm_{name}/run_benchmark.py")


def opinions(place):
    if not PYTHON.exists() or not (PYTHON.parent / "memray").exists():
        raise Missing("memray and pyperformance (scripts/second-opinions --fetch)")
    yield allocated(place)
    yield kept(place)


def allocated(place):
    command = [str(PYTHON), benchmark("telco"), *ONCE, "-l40"]
    profile(command, place, "64K")
    top = top_lines(place, OF_PYTHON)[0]
    memray = str(PYTHON.parent / "memray")
    run([memray, "run", "-q", "-o", "m.bin", "--trace-python-allocators", *command[1:]], place)
    run([memray, "stats", "--json", "-n", "5000", "-o", "stats.json", "m.bin"], place)
    rows = json.loads((place / "stats.json").read_text())["top_allocations_by_size"]
    wanted = f"{top['file']}:{top['line']}"
    theirs = sum(row["size"] for row in rows if row["location"].endswith(wanted))
    site = f"{top['function']}, line {top['line']}"
    return Opinion("CPython", "pyperformance's telco", site, top["bytes"], top["error"], "memray", theirs)


def kept(place):
    (place / "keeps.py").write_text(KEEPS)
    command = [str(PYTHON), "keeps.py", benchmark("docutils"), *ONCE, "-l1"]
    profile(command, place, "16K")
    top = top_lines(place, OF_PYTHON, "samples.live")[0]
    run([command[0], "-X", "tracemalloc=1", *command[1:]], place)
    traced = {(file, line): size for file, line, size in json.loads((place / "traced.json").read_text())}
    site = f"{top['function']}, line {top['line']}, alive at the end"
    theirs = traced.get((top["file"], top["line"]), 0)
    return Opinion("CPython", "pyperformance's docutils", site, top["bytes"], top["error"], "tracemalloc", theirs)
