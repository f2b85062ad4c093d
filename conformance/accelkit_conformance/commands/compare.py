"""``accelkit conformance compare A B``: show which tests got worse and which got better from report A to report B."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json
from accelkit.errors import one_line
from accelkit_conformance.report import Report, results_of
from accelkit_conformance.reports import bundle
from accelkit_conformance.results import BAD, Kind, Result

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_WORSE = 1
_SHOWN = 25
_ORDER: tuple[Kind, ...] = ("pass", "expected-failure", "flaky", "unsupported")
_RANKS: Mapping[Kind, int] = dict.fromkeys(BAD, len(_ORDER)) | {kind: rank for rank, kind in enumerate(_ORDER)}


@click.command("compare")
@click.argument("a", metavar="A", type=_FILE)
@click.argument("b", metavar="B", type=_FILE)
@json_option()
@click.pass_context
def command(context: click.Context, a: Path, b: Path, is_json: bool) -> None:
    """Show which tests got worse and which got better from report A to report B. A and B can each be a JSON report or a bundle.

    From best to worst, the kinds of results are: pass, expected-failure, flaky, unsupported, and any failure. The exit code is 1 if a test
    got worse.
    """
    before, after = bundle.load(a), bundle.load(b)
    differences = _differences(before, after)
    changes = _changes(before, after)
    if is_json:
        print_json("conformance.compare", {"a": str(a), "b": str(b), "differences": differences, **changes})
    else:
        click.echo("\n".join(one_line(line) for line in _lines(differences, changes)))
    context.exit(_WORSE if changes["worse"] else 0)


def _differences(before: Report, after: Report) -> dict[str, dict[str, str]]:
    pairs = {
        "subject": [f"{one['subject']['name']} ({one['subject']['plugin']})" for one in (before, after)],
        "torch": [one["versions"].get("torch", one["suite"]["torch"]) for one in (before, after)],
        "profile": [one["suite"]["profile"] for one in (before, after)],
    }
    return {name: {"a": old, "b": new} for name, (old, new) in pairs.items() if old != new}


def _changes(before: Report, after: Report) -> dict[str, Any]:
    """Return the differences between the results in two reports, as a dict.

    The keys ``worse``, ``better``, ``other``, ``new`` (only in the report ``after``) and ``gone`` (only in ``before``) hold lists of tests.
    A test in ``other`` failed in both reports, but with results of different kinds. Each item of a list is a dict with the ``id`` of the
    test. If ``before`` contains the test, ``a`` is the kind of its result there. If ``after`` contains the test, ``b`` is the kind of its
    result there, and ``reason`` is the reason of this result. ``same`` is the number of tests whose results are of the same kind in both
    reports.
    """
    olds, news = ({result.id: result for result in results_of(report)} for report in (before, after))
    changes: dict[str, Any] = {name: [] for name in ("worse", "better", "other", "new", "gone")}
    for test, new in news.items():
        old = olds.get(test)
        if old is None:
            changes["new"].append({"id": test, "b": new.kind, "reason": new.reason})
        elif old.kind != new.kind:
            changes[_direction(old, new)].append({"id": test, "a": old.kind, "b": new.kind, "reason": new.reason})
    changes["gone"] = [{"id": test, "a": old.kind} for test, old in olds.items() if test not in news]
    changes["same"] = sum(test in olds and olds[test].kind == new.kind for test, new in news.items())
    return changes


def _direction(old: Result, new: Result) -> str:
    change = _RANKS[new.kind] - _RANKS[old.kind]
    return "worse" if change > 0 else "better" if change < 0 else "other"


def _lines(differences: Mapping[str, Mapping[str, str]], changes: Mapping[str, Any]) -> list[str]:
    lines = [f"{name}: {pair['a']} -> {pair['b']}" for name, pair in differences.items()]
    names = [name for name, found in changes.items() if isinstance(found, list)]
    for name in names:
        found = changes[name]
        shown = found if name == "worse" else found[:_SHOWN]
        lines += [f"{name}: {_line(one)}" for one in shown]
        if len(shown) < len(found):
            lines.append(f"{name}: ... and {len(found) - len(shown)} more; --json shows all of them")
    counts = [f"{len(changes[name])} {name}" for name in names if name != "other" or changes[name]]
    return [*lines, ", ".join([*counts, f"{changes['same']} unchanged"])]


def _line(one: Mapping[str, str]) -> str:
    kinds = " -> ".join(one[side] for side in ("a", "b") if side in one)
    return f"{one['id']}: {kinds}" + (f": {' '.join(one['reason'].split())}" if one.get("reason") else "")
