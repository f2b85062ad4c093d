"""What the benchmarks share: interleaved rounds, and a table of medians with their spread."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

Rounds = Mapping[str, Sequence[float]]


def interleave(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each in turn, ``rounds`` times over, so that a drift of the machine's speed meets all of them alike."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
        sys.stderr.write(f"\rround {number + 1} of {rounds}")
    sys.stderr.write("\n")
    return found


def microseconds(call: Callable[[], object], *, calls: int, warm_up: int, clock: Callable[[], float]) -> float:
    """What one call takes by ``clock`` (seconds), on average over ``calls`` of them."""
    for _ in range(warm_up):
        call()
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls * 1e6


def print_rounds(title: str, unit: str, found: Rounds, *, is_json: bool) -> None:
    """Median, spread (lowest to highest round), and the difference and ratio to the first row, paired round by round."""
    base_name, base = next(iter(found.items()))
    rows = {}
    for name, values in found.items():
        rows[name] = {
            "median": statistics.median(values),
            "lowest": min(values),
            "highest": max(values),
            "over_base": statistics.median(value - other for value, other in zip(values, base, strict=True)),
            "ratio": statistics.median(value / other for value, other in zip(values, base, strict=True)),
        }
    if is_json:
        print(json.dumps({"title": title, "unit": unit, "base": base_name, "rows": rows}, indent=2))
        return
    print(f"{title} ({unit}; median of {len(base)} interleaved rounds)")
    print(f"{'':<28}{'median':>10}{'lowest':>10}{'highest':>10}{'over base':>11}{'ratio':>8}")
    for name, row in rows.items():
        numbers = f"{row['median']:>10.2f}{row['lowest']:>10.2f}{row['highest']:>10.2f}{row['over_base']:>11.2f}{row['ratio']:>8.2f}"
        print(f"{name:<28}{numbers}")


def arguments(description: str, rounds: int) -> argparse.Namespace:
    """``--rounds`` and ``--json``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()
