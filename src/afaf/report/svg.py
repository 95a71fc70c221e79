"""Small charts as inline SVG, 360 units wide to be readable on a phone; every mark has its tooltip in `data-v`.

Colours of text, grid and background are CSS variables of the page, which dark mode changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise

from matplotlib.ticker import MaxNLocator

WIDTH = 360
INKS = ((0.63, "on"), (0.75, "on middle"), (1.0, "on strong"))  # (share of the colour up to which, CSS class of a number on it)
Values = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Series:
    """A line with an optional standard deviation around each point."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] | None = None


@dataclass(frozen=True)
class Piece:
    """A part of a stacked bar."""

    amount: float
    colour: str
    tooltip: str


def svg(height: float, label: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">{body}</svg>'


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def heat_map(
    values: Values,
    label: str,
    tooltip: Callable[[int, int, float], str],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str = "",
    column_title: str = "",
    high: float = 100.0,
    numbers: bool = True,
    numbers_from: float = 0.0,
    groups: Sequence[tuple[int, int]] = (),
) -> str:
    """Draw a matrix of values in 0..high; `groups` outlines squares on the diagonal, as (first, last) index.

    The value is the opacity of a cell's colour, which works in light and dark mode.
    """
    left, top = (22 if max((len(name) for name in rows), default=0) <= 3 else 84), 20
    side = (WIDTH - left - 8) / max(1, max(len(row) for row in values))
    height = side if len(values) > 2 else min(side, 40)
    parts = []
    for j, row in enumerate(values):
        if rows[j]:
            parts.append(text(left - 5, top + (j + 0.5) * height + 4, rows[j], "small", "end"))
        for i, value in enumerate(row):
            if value is None:
                continue
            share = min(max(value / high, 0.0), 1.0) if high else 0.0
            x, y = left + i * side, top + j * height
            box = f'x="{x:.4g}" y="{y:.4g}" width="{side:.4g}" height="{height:.4g}"'
            parts.append(f'<rect {box} fill-opacity="{share:.2f}" class="cell heat" data-v="{escape(tooltip(j, i, value))}"/>')
            if numbers and value >= numbers_from:
                parts.append(text(x + side / 2, y + height / 2 + 4, f"{value:.0f}", number_ink(share)))
    bottom = top + len(values) * height
    for i, name in enumerate(columns):
        if name:
            parts.append(text(left + (i + 0.5) * side, bottom + 13, name, "small"))
    for first, last in groups:
        x, y, size = left + first * side, top + first * height, (last - first + 1) * side
        parts.append(f'<rect x="{x:.4g}" y="{y:.4g}" width="{size:.4g}" height="{size * height / side:.4g}" class="outline"/>')
    parts.append(text((left + WIDTH) / 2, bottom + 28, column_title, "small"))
    parts.append(text(2, 11, row_title, "small", "start"))
    return svg(bottom + 34, label, "".join(parts))


def number_ink(share: float) -> str:
    """Return the CSS class of a number on a cell of this opacity, so that it is readable in both modes."""
    return next(ink for up_to, ink in INKS if share <= up_to)


def _ticks(low: float, high: float) -> list[float]:
    """At most six round numbers from low to high."""
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    tolerance = 1e-9 * (high - low)  # a tick may be 0.30000000000000004
    return [min(max(float(tick), low), high) for tick in ticks if low - tolerance <= tick <= high + tolerance]


def _short(tick: float) -> str:
    """Format a tick to fit the margin: 4e9, not 4e+09."""
    mantissa, e, power = f"{tick:g}".partition("e")
    return f"{mantissa}e{int(power)}" if e else mantissa


def lines(
    series: Sequence[Series],
    label: str,
    tooltip: Callable[[Series, int], str],
    *,
    x_title: str = "",
    y_title: str = "",
    y_range: tuple[float, float] | None = None,
    x_ticks: Sequence[float] | None = None,
    marks: bool = True,
) -> str:
    """Draw lines; `tooltip` is a function of a line and the index of a point."""
    values = [value for one in series for value in one.y if value is not None]
    xs = [x for one in series for x in one.x]
    if not values:
        return ""
    low, high = y_range or (min(0.0, min(values)), max(values) * 1.05 or 1.0)
    first, last = min(xs), max(xs)
    left, right, top, bottom, height = 34, 10, 20, 34, 210

    def px(x: float) -> float:
        return left + (x - first) / max(last - first, 1e-9) * (WIDTH - left - right) if last > first else (left + WIDTH - right) / 2

    def py(y: float) -> float:
        return top + (high - y) / max(high - low, 1e-9) * (height - top - bottom)

    parts = []
    for tick in _ticks(low, high):
        parts.append(f'<line x1="{left}" x2="{WIDTH - right}" y1="{py(tick):.4g}" y2="{py(tick):.4g}" class="grid"/>')
        parts.append(text(left - 4, py(tick) + 4, _short(tick), "small", "end"))
    whole = [tick for tick in _ticks(first, last) if tick == int(tick)]  # tasks and epochs are integers
    for tick in x_ticks if x_ticks is not None else whole:
        parts.append(text(px(tick), height - bottom + 14, f"{tick:g}", "small"))
    for one in series:
        points = [(px(x), py(y), i) for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)) if y is not None]
        if one.spread is not None:
            parts.append(_band(one, px, py, (low, high)))
        if len(points) > 1:
            path = "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y, _ in points)
            parts.append(f'<path d="{path}" fill="none" stroke="{one.colour}" stroke-width="1.8"/>')
        radius = 3 if marks or len(points) == 1 else 1.2  # a point without a line must be visible
        for x, y, i in points:
            parts.append(f'<circle cx="{x:.4g}" cy="{y:.4g}" r="{radius:g}" fill="{one.colour}"/>')
            parts.append(f'<circle cx="{x:.4g}" cy="{y:.4g}" r="7" class="catch" data-v="{escape(tooltip(one, i))}"/>')
    parts.append(text((left + WIDTH - right) / 2, height - 6, x_title, "small"))
    parts.append(text(2, 11, y_title, "small", "start"))
    return svg(height, label, "".join(parts))


def _band(one: Series, px: Callable[[float], float], py: Callable[[float], float], y_range: tuple[float, float]) -> str:
    """Draw the standard deviation around a line, clipped to the axis."""
    low, high = y_range
    assert one.spread is not None
    edges = [(x, y, s or 0.0) for x, y, s in zip(one.x, one.y, one.spread, strict=True) if y is not None]
    above = [f"{px(x):.4g} {py(min(y + s, high)):.4g}" for x, y, s in edges]
    below = [f"{px(x):.4g} {py(max(y - s, low)):.4g}" for x, y, s in reversed(edges)]
    return f'<path d="M{"L".join(above + below)}Z" fill="{one.colour}" opacity="0.14"/>' if len(edges) > 1 else ""


def stacked_bars(rows: Sequence[tuple[str, Sequence[Piece]]], label: str) -> str:
    """Draw a horizontal bar of full width for each row, divided in proportion to its pieces."""
    left, step, parts = 84.0, 24.0, []
    for j, (name, pieces) in enumerate(rows):
        y, x, whole = 4 + j * step, left, sum(piece.amount for piece in pieces) or 1
        parts.append(text(left - 6, y + 12.5, name, "small", "end"))
        for piece in pieces:
            width = piece.amount / whole * (WIDTH - left - 6)
            if width <= 0:
                continue
            box = f'x="{x:.5g}" y="{y:g}" width="{max(width, 0.4):.4g}" height="17"'
            parts.append(f'<rect {box} fill="{piece.colour}" class="cell" data-v="{escape(piece.tooltip)}"/>')
            x += width
    return svg(8 + len(rows) * step, label, "".join(parts))


def bars(rows: Sequence[tuple[str, float, str, str]], label: str, *, high: float, mark: float | None = None, left: float = 104) -> str:
    """Draw (name, value, colour, tooltip) as horizontal bars with their numbers; `mark` draws a vertical line at a value."""
    step, parts = 26.0, []
    room = WIDTH - left - 52

    def px(value: float) -> float:
        return left + min(value / high, 1.0) * room

    for j, (name, value, colour, tooltip) in enumerate(rows):
        y = 4 + j * step
        parts.append(text(left - 6, y + 13, name, "small", "end"))
        parts.append(
            f'<rect x="{left}" y="{y:g}" width="{max(px(value) - left, 0.6):.4g}" height="18" fill="{colour}" data-v="{escape(tooltip)}"/>'
        )
        parts.append(text(px(value) + 4, y + 13, f"{value:.3g}", "small", "start"))
    if mark is not None:
        parts.append(f'<line x1="{px(mark):.4g}" x2="{px(mark):.4g}" y1="0" y2="{4 + len(rows) * step:g}" class="mark"/>')
    return svg(8 + len(rows) * step, label, "".join(parts))


def dots(rows: Sequence[tuple[str, Sequence[tuple[float, str, str]]]], label: str, *, left: float = 84) -> str:
    """Draw a row of dots (value, colour, tooltip) for each name, on a common axis."""
    values = [value for _, marks in rows for value, _, _ in marks]
    if not values:
        return ""
    low, high = min(values), max(values)
    margin = max((high - low) * 0.06, 0.5)
    low, high = low - margin, high + margin
    step, parts = 24.0, []
    height = 8 + len(rows) * step

    def px(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - 10)

    for tick in _ticks(low, high):
        parts.append(f'<line x1="{px(tick):.4g}" x2="{px(tick):.4g}" y1="4" y2="{height:g}" class="grid"/>')
        parts.append(text(px(tick), height + 12, f"{tick:g}{' %' if tick == _ticks(low, high)[-1] else ''}", "small"))
    for j, (name, marks) in enumerate(rows):
        y = 16 + j * step
        parts.append(text(left - 6, y + 4, name, "small", "end"))
        for value, colour, tooltip in marks:
            parts.append(f'<circle cx="{px(value):.4g}" cy="{y:g}" r="4.2" fill="{colour}" opacity="0.75" data-v="{escape(tooltip)}"/>')
    return svg(height + 18, label, "".join(parts))


def parallel_coordinates(
    axes: Sequence[tuple[str, str, str]], lines: Sequence[tuple[Sequence[float | None], float, str]], label: str
) -> str:
    """Draw a vertical axis (name, low end, high end) for each quantity; lines are (places in 0..1, strength in 0..1, tooltip)."""
    left, top, bottom, height = 26.0, 44.0, 16.0, 230.0
    step = (WIDTH - 2 * left) / max(len(axes) - 1, 1)

    def at(i: int, place: float) -> str:
        return f"{left + i * step:.4g} {top + (1 - place) * (height - top - bottom):.4g}"

    parts = []
    for places, strength, tooltip in lines:
        points = [at(i, place) for i, place in enumerate(places) if place is not None]
        drawn = f'd="M{"L".join(points)}" fill="none" stroke="var(--heat)" stroke-opacity="{0.12 + 0.88 * strength:.2f}"'
        parts.append(f'<path {drawn} stroke-width="{1 + strength:.2f}" data-v="{escape(tooltip)}"/>')
    for i, (name, low, high) in enumerate(axes):
        x = left + i * step
        parts.append(f'<line x1="{x:.4g}" x2="{x:.4g}" y1="{top:g}" y2="{height - bottom:g}" class="grid"/>')
        parts.append(text(x, 10 + 12 * (i % 2), name[:16], "small"))  # names in two rows, not to touch
        parts.append(text(x, top - 6, high[:8], "small"))
        parts.append(text(x, height - bottom + 11, low[:8], "small"))
    return svg(height, label, "".join(parts))


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names with their colours, as text that wraps."""
    return (
        '<p class="legend">'
        + " ".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in entries)
        + "</p>"
    )


def boundaries(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, last) index of consecutive groups of these sizes."""
    return [(first, end - 1) for first, end in pairwise(accumulate(sizes, initial=0))]
