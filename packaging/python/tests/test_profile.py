"""Profiles as tables, in an environment where the wheel is installed. Run by scripts/test-packages."""

import subprocess
import sys

import pytest

import allocsample


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "json.allocsample"
    program = "import json; x = [json.loads('[1, 2, 3]') for _ in range(10**5)]"
    run = [allocsample.command(), "run", "--quiet", "--interval", "16K", "--output", str(path)]
    subprocess.run([*run, "--", sys.executable, "-c", program], check=True)
    return allocsample.open(path)


def test_every_library_reads_the_same_sum(profile):
    expected = profile.query("SELECT count(*) AS samples, sum(bytes) AS bytes FROM samples")[0]
    assert expected["samples"] > 100
    arrow, pandas, polars = profile.arrow(), profile.pandas(), profile.polars()
    assert [arrow.num_rows, len(pandas), polars.height] == [expected["samples"]] * 3
    for total in (sum(arrow["bytes"].to_pylist()), pandas["bytes"].sum(), polars["bytes"].sum()):
        assert total == pytest.approx(expected["bytes"])


def test_tables_are_those_of_the_query(profile):
    names = {row["name"] for row in profile.query("SELECT DISTINCT name FROM tables")}
    assert set(profile.tables()) <= names and {"samples", "functions", "process"} <= set(profile.tables())


def test_a_table_that_is_not_there_is_named(profile):
    with pytest.raises(KeyError, match="sampels: no such table; there are .*samples"):
        profile.arrow("sampels")


def test_what_the_command_says_is_the_error(profile):
    with pytest.raises(allocsample.ProfileError, match="no such column"):
        profile.query("SELECT nonesuch FROM samples")


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match="absent.allocsample: no such profile"):
        allocsample.open("absent.allocsample")
