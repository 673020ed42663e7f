"""The pytest plugin: what every test allocates, with limits.

    pytest --allocsample

runs the tests under allocsample and prints the tests with the highest peaks. In tests:

    @pytest.mark.limit_memory("24 MiB")
    @pytest.mark.limit_leaks("1 MiB")

`limit_memory` is about the largest number of bytes that were in use at the same time, of those allocated during the test.
`limit_leaks` is about the bytes allocated during the test that were still in use at its end, after a garbage collection.
Both figures are estimates from samples. A test fails when its figure is certainly above the limit: when the lower end of
the 95 % interval is.
"""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

from allocsample.command import command
from allocsample.profile import Profile

# The profile that this process writes; set when the plugin has started pytest again under the command.
PROFILE = "ALLOCSAMPLE_PYTEST_PROFILE"
KEPT = "ALLOCSAMPLE_PYTEST_KEPT"
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SHOWN = 5


def pytest_addoption(parser):
    group = parser.getgroup("allocsample")
    group.addoption("--allocsample", action="store_true", help="run the tests under allocsample, and show what they allocate")
    group.addoption("--allocsample-interval", metavar="BYTES", default="16K", help="mean bytes between two samples (default: 16K)")
    group.addoption("--allocsample-output", metavar="FILE", help="keep the profile")


def pytest_configure(config):
    config.addinivalue_line("markers", "limit_memory(size): fail if the test has more in use at any time, such as '24 MiB'")
    config.addinivalue_line("markers", "limit_leaks(size): fail if the test leaves more in use, such as '1 MiB'")
    # Not for processes that the tests start.
    path = os.environ.pop(PROFILE, None)
    is_kept = bool(os.environ.pop(KEPT, ""))
    if not config.getoption("--allocsample") or path is None:
        return
    if not os.path.exists(path):
        raise pytest.UsageError("--allocsample: this Python runs without a profile; `allocsample run python` says why")
    config.pluginmanager.register(Watch(path, is_kept))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Runs pytest once more, under the command."""
    # Before `pytest_configure`, which takes the variable out.
    if not config.getoption("--allocsample") or PROFILE in os.environ or config.getoption("help"):
        return None
    if hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--allocsample does not work with -n: it watches the process that runs the tests")
    directory = None
    output = config.getoption("--allocsample-output")
    if output is None:
        directory = tempfile.mkdtemp(prefix="allocsample-pytest-")
        output = os.path.join(directory, "tests.allocsample")
    output = os.path.abspath(output)
    # Since Python 3.10. The way by which pytest was called decides what is in sys.path.
    arguments = getattr(sys, "orig_argv", None)
    arguments = arguments[1:] if arguments else ["-m", "pytest", *config.invocation_params.args]
    options = ["--quiet", "--children", "ignore", "--interval", config.getoption("--allocsample-interval"), "--output", output]
    environment = dict(os.environ, **{PROFILE: output, KEPT: "" if directory else "1"})
    process = subprocess.Popen([command(), "run", *options, "--", sys.executable, *arguments], env=environment)
    try:
        status = wait(process)
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
    return status if status >= 0 else 128 - status


def wait(process):
    """An interrupt is for the tests, which get it too."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass


class Usage:
    """What one test has allocated. Times are nanoseconds since 1970."""

    def __init__(self, test, begin, end):
        self.test = test
        self.begin = begin
        self.end = end


class Watch:
    """Notes when tests begin and end, and asks the profile about them."""

    def __init__(self, path, is_kept):
        self.path = path
        self.is_kept = is_kept
        self.usages = []

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        limits = {
            name: bytes_of(marker) for name in ("limit_memory", "limit_leaks") if (marker := item.get_closest_marker(name))
        }
        gc.collect()
        begin = time.time_ns()
        outcome = yield
        if limits.get("limit_leaks") is not None:
            # A traceback keeps the test's variables.
            gc.collect()
        usage = Usage(item.nodeid, begin, time.time_ns())
        self.usages.append(usage)
        if not limits or outcome.excinfo is not None:
            return
        profile = Profile(self.path)
        complaints = []
        if "limit_memory" in limits:
            complaints += exceeds("had up to", "in use", peak(profile, usage), limits["limit_memory"])
        if "limit_leaks" in limits:
            complaints += exceeds("left", "in use", at(profile, usage, usage.end), limits["limit_leaks"])
        if complaints:
            outcome.force_exception(pytest.fail.Exception("; ".join(complaints), pytrace=False))

    def pytest_terminal_summary(self, terminalreporter):
        if not self.usages:
            return
        profile = Profile(self.path)
        peaks = sorted(((peak(profile, usage), usage) for usage in self.usages), key=lambda it: -it[0]["bytes"])
        terminalreporter.section("allocsample")
        for figure, usage in peaks[:SHOWN]:
            left = at(profile, usage, usage.end)
            samples = figure["samples"]
            terminalreporter.write_line(
                f"{shown(figure['bytes']):>10} at the peak, {shown(left['bytes']):>10} left  {usage.test}"
                f" ({samples} {'sample' if samples == 1 else 'samples'} at the peak)"
            )
        if self.is_kept:
            terminalreporter.write_line(f"the profile is in {self.path}")


def bytes_of(marker):
    """The argument of a limit in bytes."""
    if len(marker.args) != 1 or marker.kwargs or not isinstance(marker.args[0], str):
        raise pytest.UsageError(f"{marker.name}: expected one string such as '24 MiB'")
    text = marker.args[0].strip()
    number = text.rstrip("BbGgIiKkMm").strip()
    unit = text[len(number) :].strip().upper() or "B"
    try:
        return float(number) * UNITS[unit]
    except (KeyError, ValueError):
        known = "B, KB, MB, GB, KiB, MiB and GiB"
        raise pytest.UsageError(f"{marker.name}: {text!r} is no size; units are {known}") from None


def exceeds(verb, state, figure, limit):
    if figure["low95"] <= limit:
        return []
    return [
        f"the test {verb} {shown(figure['bytes'])} {state} (95 % interval from {shown(figure['low95'])}"
        f" to {shown(figure['high95'])}); the limit is {shown(limit)}"
    ]


# Of the samples in a test that are in use at a moment. Profiles count from their own start.
IN_USE = """
SELECT coalesce(sum(bytes), 0) AS bytes, count(*) AS samples,
       coalesce(limit_low(sum(bytes), sum(bytes_variance), sum(size), a), 0) AS low95,
       coalesce(limit_high(sum(bytes), sum(bytes_variance), sum(size), a), 0) AS high95
FROM samples, (SELECT max(bytes_allowance) AS a FROM heaps), (SELECT start_unix_ns AS zero FROM process)
WHERE NOT carried AND time_ns BETWEEN {begin} - zero AND {moment} - zero
  AND (live OR freed_ns IS NULL OR freed_ns > {moment} - zero)
"""

# The moments at which a sample of the test is taken or freed, with the sum up to there.
PEAK = """
WITH zero AS (SELECT start_unix_ns AS ns FROM process),
     taken AS (SELECT time_ns, freed_ns, bytes FROM samples, zero
               WHERE NOT carried AND time_ns BETWEEN {begin} - zero.ns AND {end} - zero.ns),
     steps AS (SELECT time_ns AS at, bytes AS step FROM taken
               UNION ALL SELECT freed_ns, -bytes FROM taken WHERE freed_ns IS NOT NULL)
SELECT at + zero.ns AS moment, sum(step) OVER (ORDER BY at) AS bytes FROM steps, zero ORDER BY bytes DESC LIMIT 1
"""


def at(profile, usage, moment):
    return profile.query(IN_USE.format(begin=usage.begin, moment=moment))[0]


def peak(profile, usage):
    highest = profile.query(PEAK.format(begin=usage.begin, end=usage.end))
    return at(profile, usage, highest[0]["moment"] if highest else usage.end)


def shown(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            break
        size /= 1024
    else:
        unit = "GiB"
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
