"""What the benchmarks share: interleaved rounds, and tables of medians with their spread."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

Measure = Callable[[], float]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One contestant.

    Attributes:
        over_base, ratio: To the first contestant, paired round by round; medians.
        not_measured: Why there are no numbers.
    """

    median: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    over_base: float = 0.0
    ratio: float = 0.0
    not_measured: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """What was measured, of whom; the first row is what the others are compared with."""

    title: str
    unit: str
    rounds: int
    rows: Mapping[str, Row]


def compare(title: str, unit: str, measures: Mapping[str, Measure | str], rounds: int, seconds: float | None = None) -> Table:
    """Measure each in turn, ``rounds`` times over, so that a drift of the machine's speed meets all of them alike.

    Args:
        measures: By name. A text instead says why one cannot be measured.
        seconds: No round begins that would end later, judged by those before it; the first one is always made.
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


def microseconds(call: Callable[[], object], *, calls: int, warm_up: int, clock: Callable[[], float]) -> float:
    """What one call takes by ``clock`` (seconds), on average over ``calls`` of them."""
    for _ in range(warm_up):
        call()
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls * 1e6


def report(tables: Sequence[Table], *, is_json: bool) -> None:
    """Print them: median, spread (lowest to highest round), and the difference and ratio to the first row."""
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
    """``--rounds``, ``--seconds``, ``--json``, and ``--accelerator`` where there is a default for it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, help="for each table: fewer rounds if they take longer")
    parser.add_argument("--json", action="store_true")
    if accelerator is not None:
        parser.add_argument("--accelerator", default=accelerator, metavar="NAME")
    return parser


def arguments(description: str, rounds: int, accelerator: str | None = None) -> argparse.Namespace:
    """What the command line says, by ``make_parser``."""
    return make_parser(description, rounds, accelerator).parse_args()
