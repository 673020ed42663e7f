"""What the suites of scripts/own-tests are made of: sources, programs to run without the agent and under it, and how they ended."""

import atexit
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import typing

from bench import sources

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "allocsample-own-tests"
PATIENCE = 300
INTERVAL = "64K"
PASSED = "passed"
TOO_LONG = "(it took too long)"


def say(text):
    print(f"own-tests: {text}", file=sys.stderr, flush=True)


def room_for(programs):
    """A directory for what is built; it goes when the script ends."""
    directory = tempfile.mkdtemp(prefix=f"own-tests.{programs}.")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return pathlib.Path(directory)


class Missing(Exception):
    """A suite that cannot be run here."""


def source_of(package, wanted):
    """The directory with the part of the package's source that `wanted` matches."""
    try:
        return sources.source_of(package, wanted, CACHE)
    except sources.NoSource as why:
        raise Missing(str(why)) from why


def git_tree(name, url, ref, commit):
    """The directory with the commit's files."""
    try:
        return sources.git_tree(name, url, ref, commit, CACHE)
    except sources.NoSource as why:
        raise Missing(str(why)) from why


def tool_version(program, pattern):
    if shutil.which(program) is None:
        raise Missing(f"{program} is not installed")
    output = subprocess.run([program, "-v" if program.startswith("lua") else "--version"], capture_output=True, text=True)
    if program == "ocamlopt":
        output = subprocess.run([program, "-version"], capture_output=True, text=True)
    return re.search(pattern, output.stdout + output.stderr).group(1)


# ---- running ----


class Agent(typing.NamedTuple):
    """What is built: the library, and the command."""

    library: pathlib.Path
    command: pathlib.Path

    def run(self, command, directory):
        """The command that runs another under the agent; its profiles go into the directory."""
        return [str(self.command), "run", "--quiet", "--no-symbolize", "--interval", INTERVAL,
                "--output", f"{directory}/%n.%p.%t.allocsample", "--", *command]

    def has_objects(self, heap, profile):
        report = subprocess.run([self.command, "report", profile], capture_output=True, text=True).stdout
        return re.search(rf"^ +[\d.]+ [KMG]?i?B ± .* {heap}$", report, re.MULTILINE) is not None


def environment(directory, agent):
    variables = {"PATH": os.environ["PATH"], "HOME": directory, "LANG": "C.UTF-8", "TMPDIR": directory}
    if agent is not None:
        variables["ALLOCSAMPLE_LIBRARY"] = str(agent.library)
    return variables


def run(command, agent, heap, directory, patience):
    """Exit status, output, the number of profiles and whether one has objects of the heap. All that it started ends with it."""
    scratch = tempfile.mkdtemp(prefix="own-tests.")
    profiles = pathlib.Path(scratch, "profiles")
    profiles.mkdir()
    try:
        if agent is not None:
            command = agent.run(command, profiles)
        child = subprocess.Popen(command, cwd=directory or scratch, env=environment(scratch, agent), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = child.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            output = TOO_LONG.encode()
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        found = sorted(profiles.glob("*.allocsample"), key=lambda path: path.stat().st_size, reverse=True)
        has_objects = any(agent.has_objects(heap, profile) for profile in found)
        return child.returncode, output.decode(errors="replace"), len(found), has_objects
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class Cases(typing.NamedTuple):
    """How a program with many tests in it ended: `how` by the test's name, `PASSED` for those that passed."""

    status: int
    how: dict

    def passed(self):
        return {name for name, how in self.how.items() if how == PASSED}


class Suite:
    """Programs by name: what to run for one of them, and what it says of how it ended (a `Cases`, or anything that compares).

    `heap` is the one that the runtime's bridge tells of. `only` makes of a program's command one for some of its cases."""

    def __init__(self, runtime, name, tests, verdict=lambda status, output: status, *, heap=None, patience=PATIENCE,
                 only=lambda command, cases, agent: command):
        self.runtime, self.name, self.tests, self.verdict = runtime, name, tests, verdict
        self.heap, self.patience, self.only = heap, patience, only
        self.profiles = self.runs = self.runs_with_heap = 0

    def outcome(self, name, agent, cases=()):
        command, directory = self.tests[name]
        command = self.only(command, cases, agent)
        status, output, profiles, has_objects = run(command, agent, self.heap, directory, self.patience)
        if agent is not None:
            self.profiles += profiles
            self.runs += 1
            self.runs_with_heap += has_objects
        return self.verdict(status, output), output
