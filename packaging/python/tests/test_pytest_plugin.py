"""The pytest plugin in an environment where the wheel is installed. Run by scripts/test-packages."""

import re

pytest_plugins = ["pytester"]

LIMITED = """
import pytest

kept = []

@pytest.mark.limit_memory("64 MiB")
def test_below_its_limit():
    bytearray(16 << 20)

@pytest.mark.limit_memory("64 MiB")
def test_above_its_limit():
    bytearray(128 << 20)

@pytest.mark.limit_memory("64 MiB")
def test_above_its_limit_in_small_blocks():
    [bytes(5000) for _ in range(20_000)]

@pytest.mark.limit_memory("64 MiB")
def test_one_after_the_other():
    for _ in range(10):
        bytearray(32 << 20)

@pytest.mark.limit_leaks("1 MiB")
def test_frees_all():
    bytearray(64 << 20)

@pytest.mark.limit_leaks("1 MiB")
def test_keeps_some():
    kept.append([bytes(5000) for _ in range(2_000)])

@pytest.mark.limit_leaks("1 MiB")
def test_garbage_is_no_leak():
    cycle = [bytes(5000) for _ in range(2_000)]
    cycle.append(cycle)
"""


def outcomes(result):
    return dict(re.findall(r"::(test_\w+) (PASSED|FAILED)", result.stdout.str()))


def test_limits_fail_the_tests_that_exceed_them(pytester):
    pytester.makepyfile(LIMITED)
    result = pytester.runpytest_subprocess("--allocsample", "-v")
    assert result.ret == 1
    assert outcomes(result) == {
        "test_below_its_limit": "PASSED",
        "test_above_its_limit": "FAILED",
        "test_above_its_limit_in_small_blocks": "FAILED",
        "test_one_after_the_other": "PASSED",
        "test_frees_all": "PASSED",
        "test_keeps_some": "FAILED",
        "test_garbage_is_no_leak": "PASSED",
    }
    result.stdout.fnmatch_lines(["*the test had up to 128.* MiB in use*; the limit is 64.0 MiB"])
    result.stdout.fnmatch_lines(["*the test left * MiB in use*; the limit is 1.0 MiB"])


def test_limits_do_nothing_without_the_option(pytester):
    pytester.makepyfile(LIMITED)
    result = pytester.runpytest_subprocess("-v")
    assert result.ret == 0 and set(outcomes(result).values()) == {"PASSED"}


def test_the_summary_is_within_the_error_of_the_truth(pytester):
    pytester.makepyfile("def test_blocks():\n    [bytes(50_000) for _ in range(1_000)]\n")
    result = pytester.runpytest_subprocess("--allocsample", "--allocsample-output", "kept.allocsample")
    result.assert_outcomes(passed=1)
    peak = float(re.search(r"([0-9.]+) MiB at the peak.*::test_blocks", result.stdout.str()).group(1))
    # 1,000 blocks, nearly all of which are sampled at 16 KiB: the standard error is below 1 %.
    assert abs(peak - 50_000 * 1_000 / 2**20) < 2
    assert (pytester.path / "kept.allocsample").exists()


def test_a_wrong_limit_is_named(pytester):
    pytester.makepyfile("import pytest\n\n@pytest.mark.limit_memory(24)\ndef test_one():\n    pass\n")
    result = pytester.runpytest_subprocess("--allocsample")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*limit_memory: expected one string such as '24 MiB'*"])


def test_the_exit_status_and_arguments_are_those_of_pytest(pytester):
    pytester.makepyfile("def test_one():\n    assert False\n\ndef test_two():\n    pass\n")
    assert pytester.runpytest_subprocess("--allocsample", "-k", "two").ret == 0
    assert pytester.runpytest_subprocess("--allocsample", "-k", "one").ret == 1
    assert pytester.runpytest_subprocess("--allocsample", "-k", "none").ret == 5
