"""Programs of the runtimes, and how one is run."""

import dataclasses
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from bench.installed import environment_with, package_version
from bench.pairing import Spread
from bench.servers import Skip
from bench.tools import ROOT

INPUTS = ROOT / "bench/inputs"
# Profilers that note each object take ten times as long as the program.
ROUNDS_OF_OWN = 2
TREES = ("java", "-XX:+UseSerialGC", "-Xmn64m", "-Xmx512m", "-cp", "{scratch}", "Trees", "40")


@dataclasses.dataclass(frozen=True, eq=False)
class Own:
    """A profiler of the runtime's own, or the one that its users take: the command instead of the plain one, or its options in
    front of the program, and variables."""

    name: str
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


JFR = Own("JFR, settings=profile", ("-XX:StartFlightRecording=settings=profile,filename=own.jfr",))
TRACEMALLOC = Own("tracemalloc, 1 frame", ("-X", "tracemalloc=1"))
# Keeps what is alive with its stack, as a profiler does. A word is 8 bytes.
MEMPROF = """let live = Hashtbl.create 1000
let keep (it : Gc.Memprof.allocation) = Hashtbl.replace live it it.size; Some it
let drop it = Hashtbl.remove live it
let tracker = { Gc.Memprof.null_tracker with alloc_minor = keep; alloc_major = keep; dealloc_minor = drop; dealloc_major = drop }
let () = Gc.Memprof.start ~sampling_rate:(1. /. 65536.) ~callstack_size:100 tracker
"""
# What dotnet-trace asks for with its profile gc-verbose: events of collections, and AllocationTick.
EVENT_PIPE = Own("EventPipe, gc-verbose", variables={
    "DOTNET_EnableEventPipe": "1",
    "DOTNET_EventPipeOutputPath": "own.nettrace",
    "DOTNET_EventPipeConfig": "Microsoft-Windows-DotNETRuntime:0x8003:5",
})


class Runtime:
    """A program of a runtime, and profilers that are there to be compared with."""

    def __init__(self, name, program, *arguments, needs=None, own=(), variables=None):
        self.name, self.program, self.arguments, self.needs = name, program, arguments, needs or program
        self.own, self.variables = tuple(it for it in own if it is not None), variables or {}

    def command(self, own=None):
        if own is not None and own.command:
            return [*own.command, *self.arguments]
        return [self.program, *(own.options if own else ()), *self.arguments]

    def under_agent(self, agent, interval):
        """Its environment."""
        ours = {"LD_PRELOAD": str(agent), "ALLOCSAMPLE_OUTPUT": "%n.%p.allocsample", "ALLOCSAMPLE_INTERVAL": interval}
        return {**ours, **self.variables}


def input_of(name):
    return str(INPUTS / name)


def python():
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "python3"


def memray(scratch):
    """None if it cannot be had."""
    try:
        inside = environment_with(python(), ["memray"], str(scratch / "memray"))
    except Skip as why:
        print(f"bench-runtimes: memray is left out: {why}", file=sys.stderr)
        return None
    command = (inside, "-m", "memray", "run", "-q", "-f", "--trace-python-allocators", "-o", "own.bin")
    return Own(f"memray {package_version(inside, 'memray')}, Python's allocators too", command=command)


def xdebug():
    """PHP's profiler of functions, with time and memory; None if it is not installed."""
    found = glob.glob("/usr/lib/php/*/xdebug.so")
    options = (f"-dzend_extension={found[0]}", "-dxdebug.mode=profile", "-dxdebug.output_dir=.") if found else ()
    return Own("Xdebug, mode=profile", options) if found else None


def words(rounds, *own):
    """CPython's program."""
    return Runtime("CPython", python(), input_of("words.py"), str(rounds), own=(TRACEMALLOC, *own))


def json_tool(scratch, *own):
    """A program of CPython's own library."""
    arguments = ("-m", "json.tool", str(scratch / "people.json"), "indented.json")
    return Runtime("CPython, json.tool", python(), *arguments, own=(TRACEMALLOC, *own))


def trees(scratch, name, calls):
    """GCBench's binary trees, so many calls below main."""
    arguments = [argument.format(scratch=scratch) for argument in TREES]
    return Runtime(name, *arguments, str(calls), needs="javac", own=[JFR])


def runtimes(scratch):
    noted_by_ruby = Own("ObjectSpace, each object", ("-robjspace", f"-r{scratch}/trace"))
    noted_by_mono = Own("log profiler, each object", (f"--profile=log:alloc,maxframes=8,output={scratch}/own.mlpd",))
    has_mono_log = os.path.exists("/usr/lib/libmono-profiler-log.so")
    of_python = memray(scratch)
    return [
        words(600, of_python),
        json_tool(scratch, of_python),
        Runtime("PyPy", "pypy3", input_of("words.py"), "900", variables={"ALLOCSAMPLE_RUNTIME": "pypy"}),
        Runtime("JVM", "java", "-XX:+UseSerialGC", "-cp", str(scratch), "Words", "3000", needs="javac", own=[JFR]),
        trees(scratch, "JVM, binary trees", 25),
        Runtime("Node.js", "node", input_of("words.js"), "1200",
                own=[Own("--heap-prof at 512 KiB", ("--heap-prof", "--heap-prof-interval=524288"))]),
        Runtime("Ruby", "ruby", input_of("words.rb"), "600", own=[noted_by_ruby]),
        Runtime("PHP", "php", input_of("words.php"), "3000", own=[xdebug()]),
        Runtime("Perl", "perl", input_of("words.pl"), "400"),
        Runtime("R", "Rscript", input_of("words.R"), "300",
                own=[Own("Rprofmem, each vector", variables={"R_PROFILE_USER": f"{scratch}/own.R"})]),
        Runtime("Tcl", "tclsh", input_of("words.tcl"), "1000"),
        Runtime("Lua 5.4", "lua5.4", input_of("words.lua"), "1500"),
        Runtime("LuaJIT", "luajit", input_of("words.lua"), "3000"),
        Runtime("OCaml", str(scratch / "words"), "900", needs="ocamlopt",
                own=[Own("Gc.Memprof at 512 KiB", command=(str(scratch / "words_memprof"),))]),
        Runtime("Erlang", "erl", "+S", "1", "-noshell", "-pa", str(scratch), "-run", "words", "main", "600", needs="erlc"),
        Runtime("D", str(scratch / "words_of_d"), "600", needs="gdc"),
        Runtime("Mono", "mono", str(scratch / "words.exe"), "200", needs="mcs", own=[noted_by_mono if has_mono_log else None]),
        Runtime(".NET", "dotnet", "exec", "--runtimeconfig", f"{scratch}/words.runtimeconfig.json", f"{scratch}/words.exe", "900",
                own=[EVENT_PIPE]),
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
        (scratch / "memprof.ml").write_text(MEMPROF)
        for name, files in (("words", ["words.ml"]), ("words_memprof", ["memprof.ml", "words.ml"])):
            subprocess.run(["ocamlopt", "-g", "-o", name, *files], cwd=scratch, check=True)
    if shutil.which("erlc"):
        subprocess.run(["erlc", "-o", scratch, INPUTS / "words.erl"], check=True)
    if shutil.which("gdc"):
        subprocess.run(["gdc", "-O2", "-g", "-shared-libphobos", "-o", scratch / "words_of_d", INPUTS / "words.d"], check=True)
    (scratch / "trace.rb").write_text("ObjectSpace.trace_object_allocations_start\n")
    (scratch / "own.R").write_text('utils::Rprofmem("own.txt")\n')


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
        now = [setup for setup in setups if not isinstance(setup[0], Own) or turn < ROUNDS_OF_OWN]
        for name, command, variables in [*now, *reversed(now)]:
            seconds, lines = run(command, variables)
            if lines != wanted:
                sys.exit(f"bench-runtimes: {runtime.name} under {getattr(name, 'name', name)} prints something else")
            spent[name] += seconds
        for name, values in ratios.items():
            if spent[name] > 0:
                values.append(spent[name] / spent[setups[0][0]])
    return {name: Spread.of(values) for name, values in ratios.items()}


def cell(spread):
    return "-" if spread is None else f"{spread.median:.2f}x ({spread.low:.2f}-{spread.high:.2f})"
