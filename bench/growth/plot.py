"""Plots as SVG: a logarithmic axis of sizes, a linear one from zero, one or two lines.

Colours are of medium brightness and there is no background, so the same file is readable on light
and on dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

from bench.figures import Spread

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 68, 28, 58, 54
TEXT = "#6e7781"
COLOURS = ("#2f81f7", "#d1702a")
TICKS_MAX = 5
_FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
# A value above what was measured, so that its label fits.
_HEADROOM = 1.15
_NEAR = 14.0  # The height of a label, and a little more.
_CHAR = 6.3  # The width of a character, about.
_WIDE = 48.0  # Sizes closer than this to the next are not named.


class Point(NamedTuple):
    """What was measured at one size."""

    size: float
    value: Spread


@dataclass(frozen=True, slots=True)
class Line:
    """One figure over all sizes."""

    label: str
    figure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A file of lines with the same unit. A size of zero is drawn one decade below the others."""

    name: str
    title: str
    sizes: str
    unit: str
    lines: tuple[Line, ...]
    is_bytes: bool = False


def svg(plot: Plot, points: Mapping[str, Sequence[Point]]) -> str:
    """Return the drawing; `points` are by figure, and a figure without points is left out."""
    lines = [(line, points[line.figure]) for line in plot.lines if points.get(line.figure)]
    assert lines, f"{plot.name}: nothing was measured"
    frame = _Frame([point for _, drawn in lines for point in drawn])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="{_FONT}" font-size="12" fill="{TEXT}">',
        f"<title>{escape(plot.title)}</title>",
        _text(LEFT, 20, plot.title, size=15, anchor="start", is_bold=True),
        _text(LEFT, 42, plot.unit, anchor="start"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, plot.sizes),
        *frame.grid(is_bytes=plot.is_bytes),
    ]
    if len(lines) > 1:
        parts += _legend([line.label for line, _ in lines])
    for number, (_, drawn) in enumerate(lines):
        others = [other for at, (_, other) in enumerate(lines) if at != number]
        parts += frame.line(drawn, COLOURS[number], others)
    return "\n".join([*parts, "</svg>"]) + "\n"


def ticks(highest: float) -> list[float]:
    """Return round values from zero to at least `highest`, about five of them."""
    highest = highest or 1.0
    rough = highest / TICKS_MAX
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough * 0.999)
    return [step * number for number in range(math.ceil(round(highest / step, 6)) + 1)]


def amount(value: float) -> str:
    """Return a value with two or three digits, and spaces between thousands."""
    digits = 0 if value >= 100 or value == round(value) else 1 if value >= 1 else 2
    return f"{value:,.{digits}f}".replace(",", " ")


def size_name(size: float, *, is_bytes: bool) -> str:
    """Return a size as an axis shows it."""
    if is_bytes:
        return f"{size / 1e9:g} GB" if size >= 1e9 else f"{size / 1e6:g} MB"
    return f"{size / 1e6:,.0f} M" if size >= 1e6 else f"{size:,.0f}".replace(",", " ")


class _Frame:
    """The axes, and where things are on them."""

    def __init__(self, points: Sequence[Point]) -> None:
        sizes = sorted({point.size for point in points})
        positive = [size for size in sizes if size > 0] or [1.0]
        self._sizes = sizes
        self._zero = math.log10(positive[0]) - 1
        self._first = self._zero if sizes[0] <= 0 else math.log10(positive[0])
        self._last = max(math.log10(positive[-1]), self._first + 1)
        self._ticks = ticks(max(0.0, *(point.value.high for point in points)) * _HEADROOM)

    def x(self, size: float) -> float:
        at = math.log10(size) if size > 0 else self._zero
        share = (at - self._first) / (self._last - self._first)
        return LEFT + 12 + share * (WIDTH - LEFT - RIGHT - 24)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self._ticks[-1] * (HEIGHT - TOP - BOTTOM)

    def grid(self, *, is_bytes: bool) -> Iterator[str]:
        for value in self._ticks:
            y = self.y(value)
            opacity = 0.25 if value else 0.8
            yield (
                f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{TEXT}" '
                f'stroke-opacity="{opacity}"/>'
            )
            yield _text(LEFT - 8, y + 4, f"{value:,g}".replace(",", " "), anchor="end")
        for size, following in zip(self._sizes, [*self._sizes[1:], math.inf], strict=True):
            if following is math.inf or self.x(following) - self.x(size) > _WIDE:
                name = size_name(size, is_bytes=is_bytes)
                yield _text(self.x(size), HEIGHT - BOTTOM + 18, name)

    def line(
        self, points: Sequence[Point], colour: str, others: Sequence[Sequence[Point]]
    ) -> Iterator[str]:
        """Draw the medians, the range of each as a bar, and their values."""
        places = [(self.x(point.size), self.y(point.value.median)) for point in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for point, (x, y) in zip(points, places, strict=True):
            low, high = self.y(point.value.low), self.y(point.value.high)
            yield (
                f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" '
                'stroke-opacity="0.5" stroke-width="4"/>'
            )
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
            at = min(high, y) - 9
            below = max(low, y) + 18
            # Below the axis it would be mistaken for a size.
            if self._is_taken(point, y, at, others) and below < HEIGHT - BOTTOM - 2:
                at = below
            yield _text(x, at, amount(point.value.median), colour=colour)

    def _is_taken(
        self, point: Point, y: float, at: float, others: Sequence[Sequence[Point]]
    ) -> bool:
        """Say whether another line runs above a point where its label would be."""
        beside = (each for other in others for each in other if each.size == point.size)
        return any(at - _NEAR < self.y(each.value.median) < y for each in beside)


def _legend(labels: Sequence[str]) -> Iterator[str]:
    x = float(WIDTH - RIGHT)
    for label, colour in reversed(list(zip(labels, COLOURS, strict=False))):
        x -= _CHAR * len(label)
        yield _text(x, 42, label, anchor="start", colour=colour)
        yield f'<circle cx="{x - 9:.1f}" cy="38" r="3.5" fill="{colour}"/>'
        x -= 30


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 0,
    anchor: str = "middle",
    colour: str = "",
    is_bold: bool = False,
) -> str:
    more = f' font-size="{size}"' if size else ""
    more += f' fill="{colour}"' if colour else ""
    more += ' font-weight="600"' if is_bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
