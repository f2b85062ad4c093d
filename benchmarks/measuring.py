"""Measurement in interleaved rounds, and tables of medians with their spread, for all benchmarks."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Measure = Callable[[], float]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The result of one contestant.

    Attributes:
        over_base: Median of the differences from the first contestant, each within one round.
        ratio: Median of the ratios to the first contestant, each within one round.
        not_measured: Why there are no numbers. Empty if there are numbers.
    """

    median: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    over_base: float = 0.0
    ratio: float = 0.0
    not_measured: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The results of all contestants in one measurement. The other rows are compared with the first row."""

    title: str
    unit: str
    rounds: int
    rows: Mapping[str, Row]


def compare(title: str, unit: str, measures: Mapping[str, Measure | str], rounds: int, seconds: float | None = None) -> Table:
    """Measure the contestants in turn for several rounds, so that a change in the machine's speed affects all of them equally.

    Args:
        title: The title of the table.
        unit: The unit of the numbers that the measures return.
        measures: The measure of each contestant by its name, or a string that says why it cannot be measured.
        rounds: The number of rounds.
        seconds: If not None, no round is started that would probably end later than this. The first round always runs.
    """
    callable_ones = {name: measure for name, measure in measures.items() if not isinstance(measure, str)}
    found: dict[str, list[float]] = {name: [] for name in callable_ones}
    began = time.perf_counter()
    number = 0
    while number < rounds:
        for name, measure in callable_ones.items():
            found[name].append(measure())
        number += 1
        sys.stderr.write(f"\r{title}: round {number} of {rounds}")
        if seconds is not None and (time.perf_counter() - began) * (number + 1) > seconds * number:
            break
    sys.stderr.write("\n")
    return Table(title, unit, number, {name: _row(name, measure, found) for name, measure in measures.items()})


def _row(name: str, measure: Measure | str, found: Mapping[str, Sequence[float]]) -> Row:
    if isinstance(measure, str):
        return Row(not_measured=measure)
    values, base = found[name], next(iter(found.values()))
    pairs = list(zip(values, base, strict=True))
    return Row(
        median=statistics.median(values),
        lowest=min(values),
        highest=max(values),
        over_base=statistics.median(value - other for value, other in pairs),
        ratio=statistics.median(value / other for value, other in pairs),
    )


def clock_of(runtime: Any) -> tuple[Callable[[], float], str]:
    """Return a clock, in seconds, for work on the device of a Runtime, and the unit of times per batch that are measured with it.

    On the CPU, the clock is the CPU time of this process. On other devices, it is the wall-clock time after all work on the
    device has finished.
    """
    if runtime.device.type == "cpu":
        return time.process_time, "us of process-CPU time"

    def wall_clock() -> float:
        runtime.accelerator.synchronize(runtime.device)
        return time.perf_counter()

    return wall_clock, "us of wall time"


def microseconds(call: Callable[[], object], *, calls: int, warm_up: int, clock: Callable[[], float]) -> float:
    """Return the average microseconds of a call over ``calls`` calls. ``clock`` returns seconds."""
    for _ in range(warm_up):
        call()
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls * 1e6


def report(tables: Sequence[Table], *, is_json: bool) -> None:
    """Print the tables: the median, the lowest and the highest round, and the difference from and ratio to the first row."""
    if is_json:
        print(json.dumps([dataclasses.asdict(table) for table in tables]))
        return
    for table in tables:
        print(f"{table.title} ({table.unit}; median of {table.rounds} interleaved rounds)")
        print(f"{'':<28}{'median':>10}{'lowest':>10}{'highest':>10}{'over base':>11}{'ratio':>8}")
        for name, row in table.rows.items():
            numbers = f"{row.median:>10.2f}{row.lowest:>10.2f}{row.highest:>10.2f}{row.over_base:>11.2f}{row.ratio:>8.2f}"
            print(f"{name:<28}{'  not measured: ' + row.not_measured if row.not_measured else numbers}")
        print()


def make_parser(description: str, rounds: int, accelerator: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with ``--rounds``, ``--seconds`` and ``--json``, and with ``--accelerator`` if ``accelerator`` gives its default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, help="time limit for each table; fewer rounds are run if they would take longer")
    parser.add_argument("--json", action="store_true")
    if accelerator is not None:
        parser.add_argument("--accelerator", default=accelerator, metavar="NAME")
    return parser


def arguments(description: str, rounds: int, accelerator: str | None = None) -> argparse.Namespace:
    """Parse the command line with a parser from ``make_parser``."""
    return make_parser(description, rounds, accelerator).parse_args()
