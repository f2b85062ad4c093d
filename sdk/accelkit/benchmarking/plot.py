"""Plots of results against size, on logarithmic axes. This module computes all positions; ``bench.html.j2`` draws the plots as SVG."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from accelkit.benchmarking.report import Result, Samples
from accelkit.text_table import number

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 12, 44
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MOST_TICKS = 7


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its position in pixels, and its text."""

    at: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A result: its position in pixels, and its size and value as text, such as ``64 KiB: 1.25``."""

    x: float
    y: float
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot: the results of one measurement, by size.

    Attributes:
        label: What was measured, such as ``float32``.
        colour: The index of the line's colour in the plot. If the device and the CPU have lines with the same label, both lines have the
            same colour.
        is_host: Whether the line shows the results of the CPU. Otherwise, it shows the results of the device.
        points: The results by size.
    """

    label: str
    colour: int
    is_host: bool
    points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Plot:
    """A plot of results against size.

    Attributes:
        unit: The unit of the vertical axis.
        x_ticks: The ticks of the horizontal axis, one for each size that was measured.
        y_ticks: The ticks of the vertical axis, at round values.
        lines: The lines of the device, followed by the lines of the CPU.
    """

    unit: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]


def by_size(results: Iterable[Result], group: str) -> Plot | None:
    """Return the plot of the results whose names are ``<group>.<kind>.<size>``, or None if no such result was measured."""
    found = [
        (kind, size, text, samples.median, is_host, result.unit)
        for result in results
        for kind, size, text in _parts(result.name, group)
        for samples, is_host in _measured(result)
    ]
    if not found:
        return None
    sizes = dict(sorted((size, text) for _, size, text, *_ in found))
    values = [value for *_, value, _, _ in found]
    ticks = _round_values(min(values), max(values))
    across = _Axis(min(sizes), max(sizes), LEFT + 20, WIDTH - RIGHT - 20)
    up = _Axis(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    colours = {kind: index for index, kind in enumerate(dict.fromkeys(kind for kind, *_ in found))}
    keys = sorted({(is_host, colours[kind], kind) for kind, *_, is_host, _ in found})
    lines = []
    for is_host, colour, kind in keys:
        mine = sorted((size, text, value) for k, size, text, value, h, _ in found if (k, h) == (kind, is_host))
        points = tuple(Point(across.at(size), up.at(value), f"{text}: {number(value)}") for size, text, value in mine)
        lines.append(Line(kind.replace("_", " ").replace(".", ", "), colour, is_host, points))
    return Plot(
        found[0][-1],
        tuple(Tick(across.at(size), text) for size, text in sizes.items()),
        tuple(Tick(up.at(value), f"{value:,.10g}") for value in _labelled(ticks)),
        tuple(lines),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis. The value ``low`` is drawn at the position ``begin``, and the value ``high`` at the position ``end``, in pixels.

    If ``low`` and ``high`` are equal, this one value is drawn in the middle of the axis.
    """

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5
        return round(self.begin + share * (self.end - self.begin), 1)


def _parts(name: str, group: str) -> Iterator[tuple[str, int, str]]:
    """Yield one tuple: the kind of the measurement ``name``, its size as a number, and its size as text.

    Yield nothing if the measurement is not in the group or its name does not end in a size.
    """
    match = re.fullmatch(rf"{re.escape(group)}\.(.+)\.([1-9]\d{{0,17}})(|B|KiB|MiB|GiB)", name)
    if match:
        yield match[1], int(match[2]) * _UNITS[match[3]], f"{int(match[2]):,} {match[3]}".strip()


def _measured(result: Result) -> Iterator[tuple[Samples, bool]]:
    for samples, is_host in ((result.device, False), (result.host, True)):
        if samples is not None and samples.median > 0:
            yield samples, is_host


def _round_values(low: float, high: float) -> list[float]:
    """Return the values at which a logarithmic axis has ticks. Each value is 1, 2 or 5 times a power of 10.

    The first value is at most ``low``, and the last value is at least ``high``.
    """
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    values = [factor * 10.0**exponent for exponent in exponents for factor in (1, 2, 5)]
    first = max(index for index, value in enumerate(values) if value <= low)
    last = min(index for index, value in enumerate(values) if value >= high and index > first)
    return values[first : last + 1]


def _labelled(values: Sequence[float]) -> list[float]:
    """Return the values at which to label the axis.

    If there are more than ``_MOST_TICKS`` values, only the powers of 10 are labelled. If there are more than ``_MOST_TICKS`` powers of 10,
    only every nth power of 10 is labelled, where n is the smallest number that leaves at most ``_MOST_TICKS`` powers.
    """
    if len(values) <= _MOST_TICKS:
        return list(values)
    powers = [value for value in values if f"{value:e}".startswith("1.0")]
    return powers[:: math.ceil(len(powers) / _MOST_TICKS)]
