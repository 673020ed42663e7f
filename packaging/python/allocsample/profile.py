"""Reads profiles into tables, by the command that came with this package."""

import json
import os
import shutil
import subprocess
import tempfile
import weakref

from allocsample.command import command


class ProfileError(Exception):
    """The command could not do what was asked; the message is the command's."""


class Profile:
    """A profile on disk, also one that is still being written.

    `query` needs nothing else. `arrow` needs pyarrow, `pandas` needs pandas and pyarrow, `polars` needs polars.
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        if not os.path.exists(self.path):
            raise FileNotFoundError(f"{self.path}: no such profile")
        self._exported = None

    def __repr__(self):
        return f"allocsample.open({self.path!r})"

    def query(self, sql):
        """The rows of an SQL query, as dictionaries. `SELECT * FROM tables` describes every table and column."""
        return json.loads(_run("query", "--format", "json", "--", self.path, sql) or b"[]")

    def tables(self):
        """The names of the tables that `arrow`, `pandas` and `polars` can read."""
        return sorted(name[: -len(".parquet")] for name in os.listdir(self._export()) if name.endswith(".parquet"))

    def arrow(self, table="samples"):
        """A table as a `pyarrow.Table`."""
        from pyarrow import parquet

        return parquet.read_table(self._file(table))

    def pandas(self, table="samples"):
        """A table as a `pandas.DataFrame`."""
        return self.arrow(table).to_pandas()

    def polars(self, table="samples"):
        """A table as a `polars.DataFrame`."""
        import polars

        return polars.read_parquet(self._file(table))

    def _file(self, table):
        path = os.path.join(self._export(), f"{table}.parquet")
        if table not in self.tables():
            raise KeyError(f"{table}: no such table; there are {', '.join(self.tables())}")
        return path

    def _export(self):
        """The directory with the tables, written when it is first needed and removed with this object."""
        if self._exported is None:
            directory = tempfile.mkdtemp(prefix="allocsample-")
            weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
            tables = os.path.join(directory, "tables.parquet")
            _run("convert", "--to", "parquet", "--output", tables, "--", self.path)
            self._exported = tables
        return self._exported


def open(path):
    """Opens a profile."""
    return Profile(path)


def _run(*arguments):
    done = subprocess.run([command(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise ProfileError(said or f"allocsample {arguments[0]}: exit status {done.returncode}")
    return done.stdout
