"""Programs of the runtimes, and how one is run."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from bench.pairing import Spread
from bench.tools import ROOT

INPUTS = ROOT / "bench/inputs"
# Profilers that note each object take ten times as long as the program.
ROUNDS_OF_OWN = 2
OWN = "own"
JFR = ("-XX:StartFlightRecording=settings=profile,filename=own.jfr",)
TREES = ("java", "-XX:+UseSerialGC", "-Xmn64m", "-Xmx512m", "-cp", "{scratch}", "Trees", "40")


class Runtime:
    """A program of a runtime. `options` are the profiler's own, in front of the program."""

    def __init__(self, name, program, *arguments, needs=None, own=None, own_name="", variables=None):
        self.name, self.program, self.arguments, self.needs = name, program, arguments, needs or program
        self.own, self.own_name, self.variables = own, own_name, variables or {}

    def command(self, options=()):
        return [self.program, *options, *self.arguments]

    def under_agent(self, agent, interval):
        """Its environment."""
        ours = {"LD_PRELOAD": str(agent), "ALLOCSAMPLE_OUTPUT": "%n.%p.allocsample", "ALLOCSAMPLE_INTERVAL": interval}
        return {**ours, **self.variables}


def input_of(name):
    return str(INPUTS / name)


def python():
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"


def words(rounds):
    """CPython's program."""
    own = {"own": ("-X", "tracemalloc=1"), "own_name": "tracemalloc, 1 frame"}
    return Runtime("CPython", python(), input_of("words.py"), str(rounds), **own)


def json_tool(scratch):
    """A program of CPython's own library."""
    own = {"own": ("-X", "tracemalloc=1"), "own_name": "tracemalloc, 1 frame"}
    return Runtime("CPython, json.tool", python(), "-m", "json.tool", str(scratch / "people.json"), "indented.json", **own)


def trees(scratch, name, calls):
    """GCBench's binary trees, so many calls below main."""
    arguments = [argument.format(scratch=scratch) for argument in TREES]
    return Runtime(name, *arguments, str(calls), needs="javac", own=JFR, own_name="JFR, settings=profile")


def runtimes(scratch):
    return [
        words(600),
        json_tool(scratch),
        Runtime("PyPy", "pypy3", input_of("words.py"), "900", variables={"ALLOCSAMPLE_RUNTIME": "pypy"}),
        Runtime("JVM", "java", "-XX:+UseSerialGC", "-cp", str(scratch), "Words", "3000", needs="javac",
                own=JFR, own_name="JFR, settings=profile"),
        trees(scratch, "JVM, binary trees", 25),
        Runtime("Node.js", "node", input_of("words.js"), "1200",
                own=("--heap-prof", "--heap-prof-interval=524288"), own_name="--heap-prof at 512 KiB"),
        Runtime("Ruby", "ruby", input_of("words.rb"), "600",
                own=("-robjspace", f"-r{scratch}/trace"), own_name="ObjectSpace, each object"),
        Runtime("PHP", "php", input_of("words.php"), "3000"),
        Runtime("Perl", "perl", input_of("words.pl"), "400"),
        Runtime("R", "Rscript", input_of("words.R"), "300"),
        Runtime("Tcl", "tclsh", input_of("words.tcl"), "1000"),
        Runtime("Lua 5.4", "lua5.4", input_of("words.lua"), "1500"),
        Runtime("LuaJIT", "luajit", input_of("words.lua"), "3000"),
        Runtime("OCaml", str(scratch / "words"), "900", needs="ocamlopt"),
        Runtime("Mono", "mono", str(scratch / "words.exe"), "200", needs="mcs",
                own=(f"--profile=log:alloc,maxframes=8,output={scratch}/own.mlpd",), own_name="log profiler, each object"),
        Runtime(".NET", "dotnet", "exec", "--runtimeconfig", f"{scratch}/words.runtimeconfig.json", f"{scratch}/words.exe", "900"),
        Runtime("Guile (libgc)", "guile", "--no-auto-compile", input_of("words.scm"), "150"),
    ]


def prepare(scratch):
    """Compiles what is compiled, and writes what is read."""
    people = [{"id": i, "name": f"name {i * 7919 % 1009}", "tags": [f"t{i % 7}", f"t{i % 11}"], "at": {"x": i * 31 % 97, "y": i / 8}}
              for i in range(100_000)]
    (scratch / "people.json").write_text(json.dumps(people))
    if shutil.which("javac"):
        subprocess.run(["javac", "-d", scratch, INPUTS / "Words.java", INPUTS / "Trees.java"], check=True)
    if shutil.which("mcs"):
        subprocess.run(["mcs", f"-out:{scratch}/words.exe", INPUTS / "words.cs"], check=True)
    framework = {"name": "Microsoft.NETCore.App", "version": "7.0.0"}
    settings = {"framework": framework, "rollForward": "LatestMajor", "configProperties": {"System.Globalization.Invariant": True}}
    (scratch / "words.runtimeconfig.json").write_text(json.dumps({"runtimeOptions": settings}))
    if shutil.which("ocamlopt"):
        shutil.copy(INPUTS / "words.ml", scratch)
        subprocess.run(["ocamlopt", "-g", "-o", "words", "words.ml"], cwd=scratch, check=True)
    (scratch / "trace.rb").write_text("ObjectSpace.trace_object_allocations_start\n")


def shim(scratch, name, *flags):
    """A library of bench/shim, compiled; None if there is no compiler."""
    if shutil.which("cc") is None:
        return None
    library = scratch / f"{name}.so"
    source = ROOT / f"bench/shim/{name}.c"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", *flags, "-o", library, source, "-ldl"], check=True)
    return library


def run(command, variables, directory=None):
    """Processor time in seconds, and what the program printed."""
    if directory is None:
        with tempfile.TemporaryDirectory() as made:
            return run(command, variables, made)
    environment = {"PATH": os.environ["PATH"], "HOME": directory, "LC_ALL": "C", "PYTHONHASHSEED": "0",
                   "PYPY_GC_NURSERY": "4M", **variables}
    with open(os.path.join(directory, "stdout"), "w+b") as output:
        child = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=subprocess.PIPE)
        said = child.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"bench-runtimes: {command[0]}: exit status {child.returncode}: {said[-300:]}")
        output.seek(0)
        lines = [line for line in output.read().splitlines() if b"jfr" not in line.lower()]
    return usage.ru_utime + usage.ru_stime, lines


def measure(runtime, setups, rounds):
    """Name of setup: ratio to the plain program, which comes first. In rounds of A, B, C, ..., C, B, A."""
    ratios = {name: [] for name, _, _ in setups[1:]}
    wanted = run(*setups[0][1:])[1]
    for turn in range(rounds):
        spent = dict.fromkeys(ratios, 0.0) | {setups[0][0]: 0.0}
        now = [setup for setup in setups if setup[0] != OWN or turn < ROUNDS_OF_OWN]
        for name, command, variables in [*now, *reversed(now)]:
            seconds, lines = run(command, variables)
            if lines != wanted:
                sys.exit(f"bench-runtimes: {runtime.name} under {name} prints something else")
            spent[name] += seconds
        for name, values in ratios.items():
            if spent[name] > 0:
                values.append(spent[name] / spent[setups[0][0]])
    return {name: Spread.of(values) for name, values in ratios.items()}


def cell(spread):
    return "-" if spread is None else f"{spread.median:.2f}x ({spread.low:.2f}-{spread.high:.2f})"
