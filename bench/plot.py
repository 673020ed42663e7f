"""Draws lines on logarithmic axes as SVG, by hand: the picture needs no library to make, and changes only where a figure does."""

import dataclasses
import html
import math
from collections.abc import Callable

from bench import sizes

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 66, 170, 44, 56
COLOURS = ("#1b6ac9", "#c2410c", "#15803d", "#7e22ce", "#92740a")
MARKS = ("circle", "square", "diamond")


@dataclasses.dataclass(frozen=True)
class Line:
    """A name, and points of an interval in bytes (or another number above 0) and a percentage."""

    name: str
    points: list[tuple[int, float]]


def log_log(lines: list[Line], title: str, x_label: str, y_label: str, of_x: Callable[[int], str] | None = None) -> str:
    """The whole picture. What is not above zero has no place on it and is left out. Places on the x axis are bytes, unless
    `of_x` writes them."""
    shown = [Line(line.name, [(x, y) for x, y in line.points if y > 0]) for line in lines]
    xs = [x for line in shown for x, _ in line.points]
    ys = [y for line in shown for _, y in line.points]
    frame = _Frame(min(xs), max(xs), 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys))))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{html.escape(title)}" font-family="system-ui, sans-serif" font-size="13" fill="#333">',
        # A ground of its own: pages may be dark.
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600">{html.escape(title)}</text>',
        *_axes(frame, {x: (of_x or _short_size)(x) for x in sorted(set(xs))}, x_label, y_label),
    ]
    label_ys = _spread([frame.y(line.points[-1][1]) for line in shown])
    for number, (line, label_y) in enumerate(zip(shown, label_ys)):
        parts += _line(frame, line, number, label_y)
    return "\n".join([*parts, "</svg>", ""])


@dataclasses.dataclass(frozen=True)
class _Frame:
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        share = math.log(value / self.x_low) / math.log(self.x_high / self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = math.log(value / self.y_low) / math.log(self.y_high / self.y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _short_size(interval: int) -> str:
    return sizes.text(interval).replace("iB", "")


def _axes(frame: _Frame, places: dict[int, str], x_label: str, y_label: str) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    decade = frame.y_low
    while decade <= frame.y_high * 1.001:
        y = frame.y(decade)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{decade:g} %</text>')
        decade *= 10
    for place, label in places.items():
        x = frame.x(place)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#888"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>')
    parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#888"/>')
    middle = (LEFT + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(x_label)}</text>')
    height = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 16 {height:.0f})"'
    parts.append(f'<text x="16" y="{height:.0f}" text-anchor="middle" {turned}>{html.escape(y_label)}</text>')
    return parts


def _spread(wanted: list[float], gap: float = 17) -> list[float]:
    """Places for labels near where they are wanted, no two closer than `gap`."""
    places = list(wanted)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for before, after in zip(order, order[1:]):
        places[after] = max(places[after], places[before] + gap)
    return places


def _line(frame: _Frame, line: Line, number: int, label_y: float) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    at = [(frame.x(x), frame.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    parts += [_mark(MARKS[number % len(MARKS)], x, y, colour) for x, y in at]
    name = html.escape(line.name.replace("`", ""))
    parts.append(
        f'<text x="{at[-1][0] + 10:.1f}" y="{label_y + 4:.1f}" fill="{colour}" font-weight="600">{name}</text>'
    )
    return parts


def _mark(kind: str, x: float, y: float, colour: str) -> str:
    if kind == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == "diamond" else ""
    return f'<rect x="{x - 3.2:.1f}" y="{y - 3.2:.1f}" width="6.4" height="6.4" fill="{colour}"{turned}/>'
