"""The control plane at scale: what joining, verification, the call log, is_preempted, checkpoints and launching cost rank 0.

Real jobs of a few processes count what goes through their TCP connections (Linux only). Larger jobs are simulated: accelkit's own code runs
as rank 0. A process group and a store make the messages that the other ranks would send, with the functions that encode them, and count
these messages without the headers of gloo and TCP. What takes too long to simulate is computed from the smaller jobs, by the formula in
the table.

python benchmarks/scale.py --output benchmarks/results/cpu    # scale.json, scale.md and scale.svg
python benchmarks/scale.py --processes 2 4 --ranks 64 256 --json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import counted_processes
import simulated_operations
import simulated_save
import torch
from everything import about
from simulated_ranks import Count

MB = 1e6
SAVE, MANIFEST, PLAN = "save", "manifest and index, read by every rank that loads", "state encoded and planned, on every rank"
LOGS = "launch logs: 50 kB from each process of one machine, which stay there"
PER_CALL = ("verified call", "call that is not verified", "vote on preemption")
CALL_LOG = "call log, on the host of the store"
_TERMS: dict[str, Callable[[float], float]] = {"": lambda n: 1.0, "log2 n": math.log2, "n": lambda n: n, "n²": lambda n: n * n}
_MODELS = (("",), ("", "log2 n"), ("", "n"), ("", "n", "n²"))
_CLOSE, _NEGLIGIBLE = 0.03, 2e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Aim:
    """The most that a job of 4,096 ranks may cost rank 0. None means that there is no limit."""

    received: float | None = None
    seconds: float | None = None


AIMS = {
    "join: learn which ranks share a machine": Aim(seconds=1.0),
    "join: compare the settings": Aim(seconds=1.0),
    SAVE: Aim(received=16 * MB, seconds=2.0),
}
AIMS_FOR = 4096
LOCAL_PROCESSES = (2, 8, 64)


@dataclasses.dataclass(frozen=True, slots=True)
class Formula:
    """The cost of a job of n ranks: a sum of terms with coefficients, fitted to what was measured."""

    coefficients: Mapping[str, float]

    def __call__(self, size: float) -> float:
        return sum(value * _TERMS[term](size) for term, value in self.coefficients.items())

    @property
    def growth(self) -> str:
        """The largest term: 1, log2 n, n or n²."""
        largest = [term for term, value in self.coefficients.items() if value]
        return (largest[-1] if largest else "") or "1"

    def __str__(self) -> str:
        shown = [f"{value:.3g}{' ' * bool(term)}{term}" for term, value in reversed(self.coefficients.items()) if value]
        return " + ".join(shown).replace("+ -", "- ") or "0"


def fit(points: Mapping[int, float], closeness: float = _CLOSE) -> Formula:
    """Return the shortest formula that is close to all points, or else the longest formula that the points determine."""
    sizes, formula = sorted(points), Formula({"": 0.0})
    largest = max(points.values())
    for terms in _MODELS:
        if len(terms) > len(sizes) or ("log2 n" in terms and len(sizes) < 3):
            continue
        weights = torch.tensor([1 / max(points[size], largest * 1e-9, 1e-12) for size in sizes], dtype=torch.float64)
        rows = torch.tensor([[_TERMS[term](size) for term in terms] for size in sizes], dtype=torch.float64)
        values = torch.tensor([points[size] for size in sizes], dtype=torch.float64)
        found = torch.linalg.lstsq(rows * weights[:, None], values * weights).solution.tolist()
        shares = [
            max(abs(value * _TERMS[term](size)) / max(points[size], 1e-12) for size in sizes)
            for term, value in zip(terms, found, strict=True)
        ]
        formula = Formula({term: value if share > 1e-3 else 0.0 for term, value, share in zip(terms, found, shares, strict=True)})
        if all(abs(formula(size) - value) <= closeness * value for size, value in points.items()):
            break
    return formula


@dataclasses.dataclass(slots=True)
class Row:
    """One operation. ``points`` maps numbers of ranks to counts."""

    title: str
    per: str
    points: dict[int, Count]
    is_real: bool = False

    @property
    def received(self) -> Formula:
        return fit({size: count.received for size, count in self.points.items()})

    @property
    def sent(self) -> Formula:
        return fit({size: count.sent for size, count in self.points.items()})

    def at(self, size: int) -> tuple[Count, bool]:
        """Return the cost for ``size`` ranks, and whether it was measured. If not, it is computed from the formulas and the largest job."""
        if size in self.points:
            return self.points[size], True
        largest = self.points[max(self.points)]
        ratio = max(size / max(self.points), 1.0) if self.growth != "1" else 1.0
        seconds = largest.seconds * (ratio if self.growth != "n²" else ratio**2)
        return Count(self.received(size), self.sent(size), largest.messages * seconds / max(largest.seconds, 1e-12), seconds), False

    @property
    def growth(self) -> str:
        growths = self.received.growth, self.sent.growth
        return max(growths, key=["1", "log2 n", "n", "n²"].index)

    def misses(self) -> Iterator[str]:
        """Yield a message for each aim that the operation misses."""
        count, _ = self.at(AIMS_FOR)
        aim = AIMS.get(self.title, Aim())
        if aim.received is not None and count.received > aim.received:
            yield f"receives {count.received / MB:.3g} MB instead of {aim.received / MB:g}"
        if aim.seconds is not None and count.seconds > aim.seconds:
            yield f"works {count.seconds:.3g} s instead of {aim.seconds:g}"
        most = "log2 n" if self.per in ("call", "second") else "n"
        order = ["1", "log2 n", "n", "n²"]
        if order.index(self.growth) > order.index(most):
            yield f"grows like {self.growth} instead of {most}"

    def as_json(self, size: int) -> dict[str, Any]:
        count, is_measured = self.at(size)
        return {
            "title": self.title,
            "per": self.per,
            "is_real": self.is_real,
            "received_formula": str(self.received),
            "sent_formula": str(self.sent),
            "growth": self.growth,
            "size": size,
            "at_size": dataclasses.asdict(count) | {"is_measured": is_measured},
            "misses": [] if self.is_real else list(self.misses()),
            "points": {str(number): dataclasses.asdict(count) for number, count in self.points.items()},
        }


def simulate(sizes: Sequence[int], layers: int, divisor: int, seconds: float) -> list[Row]:
    """Return the rows of the simulated jobs."""
    rows = []
    for name, operation in simulated_operations.OPERATIONS.items():
        per = "call" if name in PER_CALL else "second" if name == CALL_LOG else "job"
        title = f"join: {name}" if name in ("learn which ranks share a machine", "compare the settings") else name
        rows.append(Row(title, per, _measure(name, operation, sizes, seconds)))
    saved: dict[int, simulated_save.Saved] = {}

    def save(size: int) -> Count:
        saved[size] = simulated_save.save(size, layers, divisor)
        return saved[size].agreement

    rows.append(Row(SAVE, "save", _measure(SAVE, save, sizes, seconds)))
    rows.append(Row(MANIFEST, "save", {size: Count(one.files, 0, 2, one.reading) for size, one in saved.items()}))
    rows.append(Row(LOGS, "job", _measure(LOGS, simulated_operations.pass_on_output, LOCAL_PROCESSES, seconds)))
    rows.append(Row(PLAN, "save", {size: Count(0, 0, 0, one.planning) for size, one in saved.items()}))
    return rows


def _measure(name: str, operation: Callable[[int], Count], sizes: Sequence[int], seconds: float) -> dict[int, Count]:
    """Return the costs by size. A size that would probably take longer than ``seconds`` is left out, and so are all larger sizes."""
    points: dict[int, Count] = {}
    taken, last = 0.0, 0
    for size in sorted(sizes):
        if last and taken * size / last > seconds:
            break
        began = time.monotonic()
        sys.stderr.write(f"{name}: {size} ranks\n")
        points[size] = operation(size)
        taken, last = time.monotonic() - began, size
    return points


def real(sizes: Sequence[int], layers: int, divisor: int) -> list[Row]:
    """Return the rows of the real jobs, as counted by rank 0."""
    rows: dict[str, Row] = {}
    for size in sorted(sizes):
        sys.stderr.write(f"{size} processes\n")
        for name, count in counted_processes.run(size, layers, divisor)[0].items():
            rows.setdefault(name, Row(name, "call" if name in PER_CALL else "job", {}, is_real=True)).points[size] = count
    return list(rows.values())


def as_markdown(found: dict[str, Any]) -> Iterator[str]:
    yield "# The control plane at scale"
    yield ""
    yield from textwrap.wrap(", ".join(f"{name} {value}" for name, value in found["about"].items()) + ".", 100)
    yield "Made by `benchmarks/scale.py`, which says what is simulated. Bytes and messages are those of rank 0, or of"
    yield "the process that hosts the store; messages are those received and sent. Seconds are CPU time of one"
    yield "rank's own code, without that of the store's host, except in the row of the call log."
    for kind, is_real in (("Simulated ranks", False), ("Real processes", True)):
        rows = [row for row in found["rows"] if row["is_real"] == is_real]
        if not rows:
            continue
        size = f"{rows[0]['size']:,}"
        yield from ["", f"## {kind}", ""]
        yield f"| operation | per | bytes received, n ranks | bytes sent | {size}: received | sent | messages | seconds | misses its aim |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for row in rows:
            at = row["at_size"]
            note = "" if at["is_measured"] else " (computed)"
            note = note if row["size"] == rows[0]["size"] else f" ({row['size']} processes)"
            numbers = [f"{at['received'] / MB:.4g} MB", f"{at['sent'] / MB:.4g} MB", f"{at['messages']:,.0f}", f"{at['seconds']:.3g}{note}"]
            cells = [row["title"], row["per"], row["received_formula"], row["sent_formula"], *numbers, "; ".join(row["misses"]) or "no"]
            yield f"| {' | '.join(cells)} |"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw bytes and seconds at rank 0 over the number of ranks, with logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, title in zip(axes, ("bytes received and sent", "seconds of CPU time"), strict=True):
        for number, row in enumerate(rows):
            values = [(size, count.received + count.sent if axis is axes[0] else count.seconds) for size, count in row.points.items()]
            shown = [(size, value) for size, value in values if value > 0]
            if shown:
                label = f"{row.title}, real" if row.is_real else row.title
                axis.loglog(*zip(*shown, strict=True), "o--" if row.is_real else "o-", color=f"C{number % 10}", label=label, markersize=3)
        axis.set(xlabel="ranks", title=title)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=6)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4, 8, 16], metavar="N", help="sizes of the real jobs, up to 64")
    parser.add_argument(
        "--ranks", type=int, nargs="*", default=[128, 256, 1024, 4096, 16384], metavar="N", help="sizes of the simulated jobs"
    )
    parser.add_argument("--layers", type=int, default=80, help="of the model that is saved: Llama 2 70B has 80")
    parser.add_argument("--width-divisor", type=int, default=1, help="divides the widths of the simulated model")
    parser.add_argument("--seconds", type=float, default=120.0, help="a simulated size that would take longer is computed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="needs matplotlib")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="for scale.json, scale.md and scale.svg")
    options = parser.parse_args()
    if any(not 2 <= size <= 64 for size in options.processes):
        parser.error("--processes takes numbers from 2 to 64")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("ACCELKIT_JOB_SECRET", "0" * 64)
    rows = real(options.processes, options.layers, 64)  # forks, so it comes before anything that starts threads
    rows = simulate(options.ranks, options.layers, options.width_divisor, options.seconds) + rows
    found = {"about": about(), "rows": [row.as_json(max(row.points) if row.is_real or row.title == LOGS else AIMS_FOR) for row in rows]}
    text = "\n".join(as_markdown(found)) + "\n"
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "scale.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        (options.output / "scale.md").write_text(text, "utf-8")
    for path in filter(None, (options.plot, options.output and options.output / "scale.svg")):
        draw(rows, path)
    print(json.dumps(found) if options.json else text)


if __name__ == "__main__":
    main()
