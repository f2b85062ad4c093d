"""What a run recorded, read with the tools that its users have."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Curve = list[tuple[int, float]]


def from_csv(folder: Path, name: str = "loss") -> Curve:
    """The steps and values of one name, in the order of the file."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row[name]]


def from_jsonl(folder: Path, name: str = "loss") -> Curve:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[name]) for row in rows if name in row]


def from_tensorboard(folder: Path, name: str = "loss") -> Curve:
    return [(event.step, event.value) for event in events(folder).Scalars(name)]


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator
