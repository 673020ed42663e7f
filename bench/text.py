"""How figures are written: tables, ratios, spreads, and bounds with their verdict."""

import dataclasses
import math
from collections.abc import Sequence

from bench.pairing import Spread


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def ratio(spread: Spread) -> str:
    """`1.06x (1.05-1.07)`."""
    digits = 2 if spread.median < 9.95 else 1
    return f"{spread.median:.{digits}f}x ({spread.low:.{digits}f}-{spread.high:.{digits}f})"


def nanoseconds(spread: Spread) -> str:
    """From seconds: `123 ns (120-130)`; below 10 with decimals."""
    digits = 0 if abs(spread.median) >= 10e-9 else 2
    median, low, high = (value * 1e9 for value in (spread.median, spread.low, spread.high))
    return f"{median:,.{digits}f} ns ({low:,.{digits}f}-{high:,.{digits}f})"


def percent(fraction: float) -> str:
    """`+0.31 %`, with as many decimals as there is sense in."""
    value = fraction * 100
    digits = 2 if abs(value) < 1 else 1 if abs(value) < 100 else 0
    return f"{value:+,.{digits}f} %"


@dataclasses.dataclass(frozen=True)
class Bound:
    """A figure that we hold ourselves to."""

    figure: str
    measured: float
    at_most: float
    unit: str = ""
    """Behind the number; `x` for ratios."""

    def row(self) -> list[str]:
        """Its line in the table of bounds."""
        digits = 2 if self.at_most < 10 else 0
        if self.at_most < 0.1 or self.unit == " %" and self.at_most < 1:
            digits = 3
        factor = self.measured / self.at_most
        verdict = "yes" if factor <= 1 else "**no**" if factor < 1.5 else f"**no**, {factor:.1f} times that"
        return [self.figure, f"{self.measured:,.{digits}f}{self.unit}", f"{self.at_most:,g}{self.unit}", verdict]


@dataclasses.dataclass(frozen=True)
class Rival:
    """A figure of ours and a peer's, each over the peer's own base."""

    figure: str
    ours: float
    peer: str
    theirs: float
    unit: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether the peer is cheaper, by more than 2 % of what we take."""
        return self.theirs < self.ours - 0.02 * abs(self.ours)


def plain_number(value: float) -> str:
    """Three digits, no exponent: `24,300`, `1.18`, `0.0205`."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 3)}f}"


def rivalry(rivals: Sequence[Rival]) -> str:
    """A line for each figure, a column for each peer; a peer that is cheaper is in bold."""
    peers = list(dict.fromkeys(rival.peer for rival in rivals))
    by_figure: dict[str, dict[str, Rival]] = {}
    for rival in rivals:
        by_figure.setdefault(rival.figure, {})[rival.peer] = rival
    rows = []
    for figure, found in by_figure.items():
        ours = next(iter(found.values()))
        cells = [f"{plain_number(ours.ours)}{ours.unit}"]
        for peer in peers:
            rival = found.get(peer)
            cell = "-" if rival is None else f"{plain_number(rival.theirs)}{rival.unit}"
            cells.append(f"**{cell}**" if rival is not None and rival.is_lost else cell)
        rows.append([figure, *cells])
    return table(["figure", "allocsample", *peers], rows)


@dataclasses.dataclass
class Findings:
    """What one part of the benchmark has to say."""

    title: str
    text: str
    """Markdown, without the title."""
    bounds: list[Bound] = dataclasses.field(default_factory=list)
    rivals: list[Rival] = dataclasses.field(default_factory=list)
    drawing: str | None = None
    """An SVG."""
