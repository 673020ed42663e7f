"""Mono's tests."""

import concurrent.futures
import re
import shutil
import subprocess

from bench.own_tests.suite import Missing, room_for, source_of, Suite, tool_version

PATTERN = re.compile(r"^(gc|sgen|thread|finali|critical-finali|weak|desweak|monitor|appdomain|abort|delegate|async|array|string|"
                     r"dynamic-method|stack|filter-stack|large-gc|unload-|xdomain|subthread|main-|context-static|safehandle|"
                     r"marshal|exception|generic-stack|spinlock|interlocked|object|unhandled|resurrect|ephemeron|tls|box)"
                     r".*\.cs$")
# A hundred threads that never pause: half an hour on two cores.
LEFT_OUT = "sgen-new-threads-dont-join-stw"
# What the makefile runs these with.
COLLECTORS = (("", []), (" concurrent", ["--gc-params=major=marksweep-conc,minor=split"]),
              (" clear-at-gc", ["--gc-debug=clear-at-gc"]))
OPTIONS = {"sgen-bridge": ["--gc-debug=bridge=Bridge", "--gc-params=bridge-implementation=tarjan"],
           "sgen-toggleref": ["--gc-params=toggleref-test"]}


def suite():
    tool_version("mono", r"version (\d+\.\d+)")
    if shutil.which("mcs") is None:
        raise Missing("no mcs (Debian: mono-mcs)")
    tree = source_of("mono", r"/mono/(tests|mini)/[^/]*\.cs$") / "mono"
    built = room_for("mono")
    driver = built / "TestDriver.dll"
    subprocess.run(["mcs", "-target:library", f"-out:{driver}", tree / "mini/TestDriver.cs"], capture_output=True, check=True)

    def compiled(source):
        # Those that call C need a library of the build.
        if "DllImport" in source.read_text(errors="replace"):
            return None
        path = built / source.with_suffix(".exe").name
        command = ["mcs", "-debug", "-unsafe", "-nowarn:0-9999", f"-r:{driver}", f"-out:{path}", source]
        done = subprocess.run(command, capture_output=True, timeout=120)
        return path if done.returncode == 0 else None

    sources_of_tests = [path for path in sorted((tree / "tests").glob("*.cs")) if PATTERN.search(path.name)
                        and not path.name.startswith(LEFT_OUT)]
    tests = {}
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for source, path in zip(sources_of_tests, pool.map(compiled, sources_of_tests), strict=True):
            if path is None:
                continue
            options = next((options for start, options in OPTIONS.items() if source.stem.startswith(start)), [])
            of_collector = source.stem.startswith(("gc", "sgen")) and not options
            for how, collector in COLLECTORS if of_collector else COLLECTORS[:1]:
                tests[source.stem + how] = (["mono", "--debug", *options, *collector, str(path)], str(built))
    return Suite("Mono", "`mono/tests` of mono", tests, heap="mono")
