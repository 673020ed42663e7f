"""Real programs on fixed input: no random, no clock."""

import contextlib
import functools
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.running import Workload
from bench.tools import ROOT, Tools, say

INPUTS = ROOT / "bench/inputs"


def real_programs(tools: Tools, scale: int) -> dict[str, Workload]:
    """Those that are installed. `scale` 1 is for counting, more for timing."""
    made = {
        "sqlite3": _sqlite3(tools, scale),
        "jq": _jq(tools, scale),
        "cc1": _cc1(tools, scale),
        "python3": _python3(scale),
        "java": _java(scale),
    }
    for name, workload in made.items():
        if workload is None:
            say(f"not installed, left out: {name}")
    return {name: workload for name, workload in made.items() if workload is not None}


def input_file(tools: Tools, name: str, text: str) -> Path:
    """A generated input, beside the build."""
    path = tools.scratch / "inputs" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def _sqlite3(tools: Tools, scale: int) -> Workload | None:
    program = shutil.which("sqlite3")
    if program is None:
        return None
    script = (INPUTS / "work.sql").read_text().replace("20000", str(20000 * scale))
    return Workload("sqlite3", (program, ":memory:"), stdin=input_file(tools, f"work-{scale}.sql", script))


def _jq(tools: Tools, scale: int) -> Workload | None:
    program = shutil.which("jq")
    if program is None:
        return None
    people = ",\n".join(
        f'{{"id":{i},"name":"name {i * 7919 % 1009}","tags":["t{i % 7}","t{i % 11}"],"at":{{"x":{i * 31 % 97},"y":{i / 8}}}}}'
        for i in range(2500 * scale)
    )
    path = input_file(tools, f"people-{scale}.json", f"[{people}]\n")
    query = (
        'map(select(.at.x > 20) | {name, tag: (.tags | join("-")), sum: (.at.x + .at.y)}) | group_by(.tag) '
        '| map({tag: .[0].tag, n: length, names: (map(.name | ascii_upcase) | unique | join(",")), sum: (map(.sum) | add)})'
    )
    return Workload("jq", (program, "-c", query, str(path)))


def _cc1(tools: Tools, scale: int) -> Workload | None:
    gcc = shutil.which("gcc")
    if gcc is None:
        return None
    program = subprocess.run([gcc, "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    if not Path(program).is_absolute():
        return None
    functions = "\n".join(
        f"""struct node{i} {{ struct node{i} *next; int value[{i % 13 + 1}]; }};
static int sum{i}(const struct node{i} *list, int limit)
{{
    int total = {i};
    for (; list; list = list->next)
        for (int k = 0; k < {i % 13 + 1} && total < limit; k++)
            total += list->value[k] > {i % 7} ? list->value[k] * {i % 29 + 2} : -list->value[k] / {i % 5 + 1};
    return total;
}}
int use{i}(struct node{i} *list, int limit)
{{
    return sum{i}(list, limit) + (limit > {i} ? sum{i}(list->next, limit / 2) : {f"use{i - 1}((void *)list, limit)" if i else "0"});
}}"""
        for i in range(16 * scale)
    )
    path = input_file(tools, f"functions-{scale}.c", functions + "\n")
    return Workload("cc1", (program, "-quiet", "-O2", str(path), "-o", "/dev/null"))


def _python3(scale: int) -> Workload | None:
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else shutil.which("python3")
    if python is None:
        return None
    # Timed, it has as much to do as the others: of a short run most is the start.
    rounds = 8 if scale == 1 else 48 * scale
    return Workload("python3", (python, str(INPUTS / "words.py"), str(rounds)))


def _java(scale: int) -> Workload | None:
    program = shutil.which("java")
    if program is None:
        return None
    # From source: the compiler that runs in the JVM first is most of the work.
    options = ("-XX:+UseSerialGC", "-Xmx256m")
    return Workload("java", (program, *options, str(INPUTS / "Words.java"), str(20 * scale)))


def redis(tools: Tools, requests: int | None) -> Workload | None:
    """A server, driven by so many requests of each kind from redis-benchmark; without a number by fixed commands."""
    server = shutil.which("redis-server")
    benchmark = shutil.which("redis-benchmark")
    if server is None or benchmark is None:
        say("not installed, left out: redis")
        return None
    # Without timers and files, which blur the picture.
    quiet = ("--save", "", "--appendonly", "no", "--daemonize", "no", "--hz", "1", "--activerehashing", "no")
    argv = (server, "--port", "0", "--unixsocket", "./socket", *quiet)
    drive = _drive_in_step if requests is None else functools.partial(_drive_with_benchmark, benchmark, requests)
    return Workload("redis", argv, drive=drive, preload=(tools.fixed_seed,))


def _drive_with_benchmark(benchmark: str, requests: int, directory: Path) -> None:
    """Pipelined, so that the server is what works."""
    kinds = "set,get,lpush,hset,sadd,lrange_100"
    options = ("-q", "-P", "16", "-c", "10", "-r", "20000", "-d", "100", "-n", str(requests), "-t", kinds)
    with _connection(directory) as connection:
        subprocess.run(
            [benchmark, "-s", directory / "socket", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        connection.sendall(b"SHUTDOWN NOSAVE\r\n")


def _drive_in_step(directory: Path) -> None:
    """Batches of 100 commands, each answered before the next: the server does the same in each run. So many of them that its
    start is a tenth of all: in a day it is nothing."""
    with _connection(directory) as connection:
        replies = connection.makefile("rb")
        for batch in range(600):
            connection.sendall(b"".join(_command(batch * 100 + i) for i in range(100)))
            for _ in range(100):
                replies.readline()
        connection.sendall(b"SHUTDOWN NOSAVE\r\n")


@contextlib.contextmanager
def _connection(directory: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        for _ in range(1200):
            try:
                connection.connect(str(directory / "socket"))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.02)
        else:
            raise RuntimeError("redis-server does not answer")
        yield connection


def _command(number: int) -> bytes:
    """One whose answer is a single line."""
    key = number * 7919 % 5003
    text = b"%d" % number * (number % 40 + 1)
    words = (
        (b"SET", b"string:%d" % key, text),
        (b"LPUSH", b"list:%d" % (key % 50), text),
        (b"HSET", b"hash:%d" % (key % 200), b"field:%d" % (number % 97), text),
        (b"SADD", b"set:%d" % (key % 100), text),
        (b"DEL", b"string:%d" % ((key + 1) % 5003)),
        (b"APPEND", b"string:%d" % key, b"more"),
    )[number % 6]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
