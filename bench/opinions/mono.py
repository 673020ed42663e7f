"""Mono's compiler of C#, against Mono's own log profiler, which notes each object."""

import pathlib
import re
import shutil
from collections import Counter

from .opinion import Missing, Opinion, profile, query, run, BYTES, ROOT

COMPILER = pathlib.Path("/usr/lib/mono/4.5/mcs.exe")
INTERVAL = 8192


def opinions(place):
    if shutil.which("mono") is None or not COMPILER.exists():
        raise Missing("mono and mcs (Debian: mono-runtime, mono-mcs)")
    if shutil.which("mprof-report") is None or not pathlib.Path("/usr/lib/libmono-profiler-log.so").exists():
        raise Missing("Mono's log profiler (Debian: libmono-profiler, mono-utils)")
    program = [str(COMPILER), "-out:x.exe", str(ROOT / "tests/programs/Troubles.cs")]
    profile(["mono", *program], place, str(INTERVAL))
    run(["mono", "--profile=log:alloc,maxframes=64,output=x.mlpd", *program], place)
    types, methods = read(run(["mprof-report", "--reports=alloc", "--traces", "--maxframes=64", "x.mlpd"], place))
    of_types = (f"SELECT type, {BYTES} FROM samples JOIN types USING (heap_id, type_id) JOIN heaps USING (heap_id) "
                "WHERE heap = 'mono' GROUP BY type ORDER BY bytes DESC LIMIT 1")
    top = query(place, of_types)[0]
    yield Opinion("Mono", "mcs, the compiler of C#", f"{top['type']} (type)", top["bytes"], top["error"], "mono --profile=log",
                  types[plain(top["type"])])
    of_methods = (f"SELECT function, {BYTES} FROM samples JOIN functions USING (function_id) JOIN heaps USING (heap_id) "
                  "WHERE heap = 'mono' GROUP BY function ORDER BY bytes DESC LIMIT 1")
    top = query(place, of_methods)[0]
    yield Opinion("Mono", "mcs, the compiler of C#", top["function"], top["bytes"], top["error"], "mono --profile=log",
                  methods[plain(top["function"])])


def plain(name):
    """Without arguments and parameters of types, and with one mark between a class and its method."""
    return re.sub(r"`\d+|<[^>]*>| ?\(.*", "", name).replace("::", ".").replace(":", ".").replace("/", ".").replace("+", ".")


def read(report):
    """Bytes by type, and by the innermost method."""
    types, methods = Counter(), Counter()
    trace, size = None, 0
    for line in [*report.splitlines(), ""]:
        if re.match(r"\t\t\S", line):
            # Its own wrappers come last.
            trace = trace if "(wrapper" in line else line.strip()
            continue
        if trace is not None:
            methods[plain(trace)] += size
            trace = None
        if of_trace := re.match(r"\t(\d+) bytes from:", line):
            size = int(of_trace[1])
        elif of_type := re.match(r" +(\d+) +\d+ +\d+ (.+)", line):
            types[plain(of_type[2])] += int(of_type[1])
    return types, methods
