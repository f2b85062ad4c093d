"""The mutation scores in docs/conformance.md: the share of the mutants that the suite detects.

``python -m accelkit_conformance.mutation_scores MATRIX...`` reads kill matrices (``accelkit conformance selftest --output``) and records in
``FILE`` which test detected each hand-written mutant, and which generated mutants were detected. What the file says about other mutants is
kept. ``generate_docs`` computes the scores in docs/conformance.md from this file. The next self-test with ``--until-killed`` runs the
recorded test of each mutant first.
"""

from __future__ import annotations

import collections
import functools
import json
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit.discovery.metadata import installed_version
from accelkit_conformance import checks, profiles
from accelkit_conformance.mutants import Mutant, all_mutants
from accelkit_conformance.mutants.generated import AXES

FILE = Path(__file__).with_name("mutants") / "outcomes.json"
"""The outcomes of the last self-tests.

``killers`` maps the name of each hand-written mutant that was run to the id of a test of its area that detected it, or to null.
``generated`` has the outcomes of each sample of generated mutants.
"""

Outcomes = dict[str, Any]
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


def update(outcomes: Outcomes, matrix: Mapping[str, Any]) -> None:
    """Add the outcomes in a kill matrix to ``outcomes``, in place.

    Of the tests of a mutant's own area that detected the mutant, one in the smallest profile is recorded. A sample of generated mutants
    replaces the earlier sample with the same seed.
    """
    if matrix.get("generated"):
        new = [{key: one[key] for key in ("id", "axis", "area", "verdict")} for one in matrix["generated"]]
        others = [one for one in outcomes.get("generated", []) if one["seed"] != matrix["seed"]]
        outcomes["generated"] = sorted([*others, {"seed": matrix["seed"], "outcomes": new}], key=lambda one: int(one["seed"]))
        return
    killers = dict(outcomes.get("killers", {}))
    for one in matrix["mutants"]:
        own = [test for test in one["killers"] if checks.area_of(test) == one["area"]]
        held = _profiles(one["kind"]) if own else {}
        killers[one["name"]] = max(own, key=lambda test: sum(test in tests for tests in held.values()), default=None)
    outcomes["killers"] = dict(sorted(killers.items()))


@functools.cache
def _profiles(kind: str) -> dict[str, Collection[str]]:
    """Return the tests in each profile for a kind of plugin and the installed torch."""
    return {profile: frozenset(profiles.suite(profile, installed_version("torch") or "", kind).tests) for profile in checks.PROFILES}


def rows(killers: Iterable[tuple[Mutant, Collection[str]]]) -> list[dict[str, Any]]:
    """Return the scores of hand-written mutants, one row per kind of plugin and area.

    A row has the number of mutants of the area. For each profile, it also has the number of these mutants that were detected by tests of
    the area in that profile. The key of this number is the name of the profile.

    Args:
        killers: Each mutant, with the ids of the tests that detected it.
    """
    groups: dict[tuple[str, str], list[list[str]]] = collections.defaultdict(list)
    for one, tests in killers:
        groups[one.kind, one.area].append([test for test in tests if checks.area_of(test) == one.area])
    found: list[dict[str, Any]] = []
    for kind in checks.SUBJECT_KINDS:
        areas = [area for area in checks.AREAS if (kind, area) in groups]
        held = _profiles(kind) if areas else {}
        for area in areas:
            own = groups[kind, area]
            counts: dict[str, int] = {profile: sum(any(test in tests for test in one) for one in own) for profile, tests in held.items()}
            found.append({"kind": kind, "area": area, "mutants": len(own), **counts})
    return found


def recorded_rows(outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return the scores of the hand-written mutants whose outcome is recorded."""
    killers = outcomes.get("killers", {})
    return rows((one, [killers[one.name]] if killers[one.name] else []) for one in all_mutants() if one.name in killers)


def section(written: Sequence[Mapping[str, Any]], outcomes: Outcomes) -> list[str]:
    """Return the lines of a Markdown section with the scores.

    Args:
        written: The scores of the hand-written mutants (``rows``).
        outcomes: The recorded outcomes, which include those of the generated mutants.
    """
    lines = [
        *textwrap.wrap(_WRITTEN, 100),
        "",
        *table(
            ["kind", "area", "mutants", *_PROFILES],
            ([one["kind"], one["area"], one["mutants"], *(one[name] for name in _PROFILES)] for one in written),
        ),
        "",
    ]
    if samples := outcomes.get("generated", []):
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
    return ["## Mutation score", "", *lines]


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


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]


def read() -> Outcomes:
    """Return the recorded outcomes."""
    return dict(json.loads(FILE.read_text("utf-8")))


if __name__ == "__main__":
    found = read()
    for name in sys.argv[1:]:
        update(found, json.loads(Path(name).read_text("utf-8")))
    FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
