"""What two tools say of one figure, and how ours is come by."""

import json
import math
import os
import pathlib
import subprocess
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMMAND = os.path.abspath(os.environ.get("ALLOCSAMPLE", ROOT / "target/release/allocsample"))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "allocsample-second-opinions"
SIGMAS = 4
PATIENCE = 600


class Missing(Exception):
    """What is not installed, and the package that has it."""


class Failed(Exception):
    """A program or a tool that did not do what it should."""


@dataclass
class Opinion:
    """Bytes by us and by somebody else, with standard errors."""

    runtime: str
    program: str
    site: str
    ours: float
    error: float
    tool: str
    theirs: float
    their_error: float = 0.0

    def agrees(self):
        return abs(self.ours - self.theirs) <= SIGMAS * math.hypot(self.error, self.their_error)


def run(command, directory, variables=None):
    """What it printed; it must succeed."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", **(variables or {})}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise Failed(f"{command[0]}: exit status {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return done.stdout


def profile(command, directory, interval, options=(), variables=None):
    """One command: the program under the agent. Returns what it printed."""
    for old in pathlib.Path(directory).glob("x.allocsample*"):
        old.unlink()
    ours = [COMMAND, "run", "-q", "--seed", "7", "--interval", interval, *options, "-o", "x.allocsample", "--"]
    return run([*ours, *command], directory, variables)


def query(directory, sql, name="x.allocsample"):
    """Rows as dictionaries."""
    return json.loads(run([COMMAND, "query", "--format", "json", name, sql], directory))


BYTES = "sum(samples.bytes) AS bytes, sqrt(sum(samples.bytes_variance)) AS error"


def heap_total(directory, heap, where="1"):
    """Bytes of a heap and the error."""
    sql = f"SELECT {BYTES} FROM samples JOIN heaps USING (heap_id) WHERE heap = '{heap}' AND {where}"
    row = query(directory, sql)[0]
    return row["bytes"] or 0.0, row["error"] or 0.0


def top_functions(directory, heap, where="1", most=20):
    """The functions that allocations of a heap are charged to, the largest first."""
    sql = (f"SELECT function, {BYTES} FROM samples JOIN heaps USING (heap_id) JOIN functions USING (function_id) "
           f"WHERE heap = '{heap}' AND {where} GROUP BY function ORDER BY bytes DESC LIMIT {most}")
    return query(directory, sql)


def top_lines(directory, files, where="1", most=20):
    """The innermost lines of files for which `files` holds (in SQL), the largest first, of all heaps."""
    sql = (f"SELECT function, inner.file AS file, inner.line AS line, {BYTES} FROM samples "
           f"JOIN (SELECT stack_id, file, line, function_id, min(depth) FROM frames WHERE {files} "
           "GROUP BY stack_id) AS inner ON inner.stack_id = samples.stack_id "
           "JOIN functions ON functions.function_id = inner.function_id "
           f"WHERE {where} GROUP BY inner.file, inner.line ORDER BY bytes DESC LIMIT {most}")
    return query(directory, sql)
