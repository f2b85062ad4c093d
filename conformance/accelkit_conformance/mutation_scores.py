"""The mutation scores in docs/conformance.md: the share of the mutants that the suite detects.

``python -m accelkit_conformance.mutation_scores PATH MATRIX...`` computes scores from kill matrices (``accelkit conformance selftest
--output``) and stores them in the JSON file PATH. A score that is already in the file is kept if no matrix replaces it. ``generate_docs``
copies the scores from docs/mutation-scores.json to docs/conformance.md.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit_conformance import checks
from accelkit_conformance.mutants.generated import AXES

FILE = "mutation-scores.json"
"""The name of the file that contains the scores. The file is in the same folder as ``conformance.md``."""

Scores = dict[str, Any]
_WRITTEN = (
    "For each area, this table shows how many mutants that are written by hand break the area, and how many of these the tests of the area "
    "detect in each profile."
)
_GENERATED = (
    "These tables show how many of the generated mutants in each sample were detected. A mutant is not triggered if its fault changed no "
    "result in the tests that were run. The last column does not count mutants that were not triggered. A generated mutant has "
    "one of these faults:"
)
_SHARES = ("detected", "not triggered", "detected, of those triggered")
_PROFILES = ("smoke", "training", "distributed", "full")


def update(scores: Scores, matrix: Mapping[str, Any]) -> None:
    """Add the scores of a kill matrix to ``scores``, in place.

    The score of the hand-written mutants of an area replaces the earlier score of that area for the same kind of plugin. The score of a
    sample of generated mutants replaces the earlier score of the sample with the same seed.
    """
    if not matrix.get("generated"):
        found = {(one["kind"], one["area"]): one for one in [*scores.get("written", []), *matrix["scores"]]}
        order = list(itertools.product(checks.SUBJECT_KINDS, checks.AREAS))
        scores["written"] = [found[key] for key in order if key in found]
        return
    outcomes = [{key: one[key] for key in ("id", "axis", "area", "verdict")} for one in matrix["generated"]]
    others = [one for one in scores.get("generated", []) if one["seed"] != matrix["seed"]]
    scores["generated"] = sorted([*others, {"seed": matrix["seed"], "outcomes": outcomes}], key=lambda one: int(one["seed"]))


def section(scores: Scores) -> list[str]:
    """Return the lines of a Markdown section with the scores; an empty list if there are no scores."""
    lines = []
    if written := scores.get("written"):
        lines += [
            *textwrap.wrap(_WRITTEN, 100),
            "",
            *table(
                ["kind", "area", "mutants", *_PROFILES],
                ([one["kind"], one["area"], one["mutants"], *(one[name] for name in _PROFILES)] for one in written),
            ),
            "",
        ]
    if samples := scores.get("generated", []):
        heads = [f"seed {one['seed']}" for one in samples]
        lines += [
            *textwrap.wrap(_GENERATED, 100),
            "",
            *(f"- `{axis}`: {description}" for axis, (_, description) in AXES.items()),
            "",
            *table(["fault", *heads, *_SHARES], _rows(samples, "axis", AXES)),
            "",
            *table(["area", *heads, *_SHARES], _rows(samples, "area", checks.AREAS)),
            "",
        ]
    return ["## Mutation score", "", *lines] if lines else []


def _rows(samples: Sequence[Mapping[str, Any]], key: str, names: Iterable[str]) -> list[list[object]]:
    """Return the rows of a table: one for each group of mutants with the same value of ``key``, and a last row for all mutants."""
    groups: dict[str, list[collections.Counter[str]]] = collections.defaultdict(lambda: [collections.Counter() for _ in samples])
    for index, sample in enumerate(samples):
        for one in sample["outcomes"]:
            groups[one[key]][index][one["verdict"]] += 1
            groups["all"][index][one["verdict"]] += 1
    rows: list[list[object]] = []
    for name in [*names, "all"]:
        if name in groups:
            total: collections.Counter[str] = sum(groups[name], collections.Counter())
            shares = (
                _share(total["killed"], total.total()),
                total["not triggered"],
                _share(total["killed"], total.total() - total["not triggered"]),
            )
            cells = [f"{one['killed']} of {one.total()}" if one else "" for one in groups[name]]
            rows.append([name if name == "all" else f"`{name}`", *cells, *shares])
    return rows


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def detected(scores: Scores, kind: str) -> tuple[int, int]:
    """Return, for a kind of plugin, how many hand-written mutants were run and how many of them were detected by tests of their area.

    Both numbers are 0 if the scores contain no mutants for this kind of plugin.
    """
    rows = [one for one in scores.get("written", []) if one["kind"] == kind]
    return sum(one["mutants"] for one in rows), sum(one["full"] for one in rows)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def read(path: Path) -> Scores:
    """Read scores from a file. Return an empty dictionary if the file does not exist."""
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


if __name__ == "__main__":
    target = Path(sys.argv[1])
    found = read(target)
    for name in sys.argv[2:]:
        update(found, json.loads(Path(name).read_text("utf-8")))
    target.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
