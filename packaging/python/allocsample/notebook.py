"""The cell magic for notebooks: what a cell allocates.

    %load_ext allocsample

    %%allocsample --interval 64K
    frame = pandas.read_csv("large.csv")

attaches to the kernel, runs the cell, detaches, and shows the lines of the cell and the functions that allocate, with the page
of `allocsample view` below.
"""

import ast
import ctypes
import html
import json
import os
import shutil
import tempfile

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from allocsample.profile import _run

SHOWN = 10
# Found here, so that no cell is charged for it.
_prctl = ctypes.CDLL(None).prctl


@magics_class
class AllocsampleMagics(Magics):
    @magic_arguments()
    @argument("-i", "--interval", default="64K", help="mean number of bytes between two samples (default: 64K)")
    @argument("-o", "--output", metavar="FILE", help="keep the profile")
    @argument("--height", type=int, default=600, help="height of the page in pixels (default: 600)")
    @argument("--no-page", action="store_true", help="show the tables alone; the page makes the notebook larger by its size")
    @cell_magic
    def allocsample(self, line, cell):
        """Show what a cell allocates."""
        options = parse_argstring(self.allocsample, line)
        code, expression, name = self._compiled(cell)
        directory = tempfile.mkdtemp(prefix="allocsample-notebook-")
        try:
            path = os.path.abspath(options.output or os.path.join(directory, "cell.allocsample"))
            if os.path.exists(path):
                raise UsageError(f"{path}: there is such a file already")
            attach(path, options.interval)
            value = failure = None
            try:
                exec(code, self.shell.user_ns)
                if expression is not None:
                    value = eval(expression, self.shell.user_ns)
            except BaseException as error:
                # What it has allocated is shown, too.
                failure = error.with_traceback(error.__traceback__.tb_next)
            detach()
            page = None if options.no_page else page_of(path)
            display(CellProfile(path, cell, name, page, options.height))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        if failure is not None:
            raise failure
        return value

    def _compiled(self, cell):
        """The cell's code but for a last expression, that expression or None, and the name by which its frames are known."""
        # Lines have the numbers that the notebook shows: the first one is the magic, and IPython drops empty lines after it.
        lines = cell.splitlines()
        empty = next((at for at, line in enumerate(lines) if line.strip()), 0)
        text = "\n" * (1 + empty) + self.shell.transform_cell(cell)
        name = self.shell.compile.cache(text)
        tree = self.shell.transform_ast(self.shell.compile.ast_parse(text, filename=name))
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";"):
            last = self.shell.compile(ast.Expression(tree.body.pop().value), name, "eval")
        return self.shell.compile(tree, name, "exec"), last, name


def attach(path, interval):
    """Starts a profile of this process."""
    allow_tracing(True)
    try:
        _run("attach", "--interval", interval, "--output", path, str(os.getpid()))
    finally:
        allow_tracing(False)


def detach():
    """Ends it."""
    allow_tracing(True)
    try:
        _run("detach", str(os.getpid()))
    finally:
        allow_tracing(False)


def allow_tracing(is_allowed):
    """Yama, a part of some kernels, lets no process look into its parent unless the parent says so. Elsewhere it does nothing."""
    set_ptracer = 0x59616D61
    anyone = ctypes.c_ulong(-1)
    _prctl(set_ptracer, anyone if is_allowed else ctypes.c_ulong(0), 0, 0, 0)


def page_of(path):
    page = path + ".html"
    try:
        _run("convert", "--to", "html", "--output", page, path)
        with open(page, encoding="utf-8") as file:
            return file.read()
    finally:
        if os.path.exists(page):
            os.remove(page)


class CellProfile:
    """What a cell has allocated, as a notebook shows it."""

    def __init__(self, path, cell, name, page, height):
        self.report = json.loads(_run("report", "--format", "json", path))
        # The first line is the magic itself.
        self.sources = ["", *cell.splitlines()]
        self.name = name
        self.page = page
        self.height = height

    def totals(self):
        report, totals = self.report, self.report["totals"]
        lost = report["lost_samples"]
        return (
            f"allocated {shown(totals, 'allocated_bytes')}, in use at the end {shown(totals, 'live_bytes')},"
            f" at the peak {shown(totals, 'peak_live_bytes')}; {report['samples']:,} samples"
            f" (one per {size(report['interval_bytes'])} on average), {lost:,} lost"
        )

    def lines(self):
        """Rows of the cell's lines: what each allocates, itself or in functions that it calls."""
        rows = {}
        for row in self.report["lines"]:
            if row["file"] == self.name and row["line"]:
                # A comprehension is a function of its own on the same line, which contains it.
                most = max(rows.get(row["line"], row), row, key=lambda row: row["total_allocated_bytes"])
                rows[row["line"]] = most
        return [
            [f"{line}", self.source(line), *(shown(row, f"total_{measure}") for measure in MEASURES[1:])]
            for line, row in sorted(rows.items())
        ]

    def source(self, line):
        return self.sources[line - 1].strip() if line <= len(self.sources) else ""

    def functions(self):
        """Rows of the functions that allocate themselves."""
        rows = sorted(self.report["functions"], key=lambda row: -max(row[f"self_{measure}"] for measure in MEASURES[:2]))
        return [
            [row["function"], self.place(row), *(shown(row, f"self_{measure}") for measure in MEASURES)]
            for row in rows[:SHOWN]
            if row["self_allocated_bytes"] > 0
        ]

    def place(self, row):
        if row["file"] is None:
            return row["module"] or ""
        if row["file"] == self.name:
            return "this cell"
        if os.path.dirname(row["file"]) == os.path.dirname(self.name):
            return "another cell"
        return row["file"].rpartition("/site-packages/")[2]

    def tables(self):
        """Titles and rows of those that are not empty."""
        tables = (["line", "", *HEADINGS[1:]], self.lines()), (["function", "", *HEADINGS], self.functions())
        return [[head, *rows] for head, rows in tables if rows]

    def __repr__(self):
        return "\n\n".join([self.totals(), *map(text_table, self.tables())])

    def _repr_html_(self):
        parts = [f"<p>{html.escape(self.totals())}</p>", *map(html_table, self.tables())]
        if self.page is not None:
            # Its scripts reach nothing of the notebook. It has many double quotes, which would grow in a text with such quotes.
            page = self.page.replace("&", "&amp;").replace("'", "&#39;")
            style = f"width: 100%; height: {self.height}px; border: 1px solid #8884"
            parts.append(f"<iframe title=\"allocsample\" sandbox=\"allow-scripts\" style=\"{style}\" srcdoc='{page}'></iframe>")
        return "\n".join(parts)


MEASURES = ("peak_live_bytes", "live_bytes", "allocated_bytes")
HEADINGS = ("at the peak", "at the end", "allocated")


def shown(row, measure):
    """A figure with its standard error."""
    value, error = row[measure], row.get(f"{measure}_stderr") or 0
    return f"{size(value)} ± {size(error)}" if value else "0 B"


def size(value):
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def text_table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [text.ljust(width) if at < 2 else text.rjust(width) for at, (text, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def html_table(rows):
    def cells(row, tag):
        aligned = ["left" if at < 2 else "right" for at in range(len(row))]
        return "".join(
            f'<{tag} style="text-align: {side}; white-space: pre">{html.escape(text)}</{tag}>' for text, side in zip(row, aligned)
        )

    head, *body = rows
    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in body)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{lines}</tbody></table>"
