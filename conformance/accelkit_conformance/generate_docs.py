"""Generate a part of ``docs/conformance.md``: descriptions of the areas, numbers of tests, and mutation scores.

The descriptions say what each area asserts. They are taken from docstrings.

``python -m accelkit_conformance.generate_docs PAGE`` replaces the text between the markers ``START`` and ``END`` in a page. A test fails if
the text in ``docs/conformance.md`` is not up to date.
"""

from __future__ import annotations

import collections
import importlib
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelkit import UsageError
from accelkit_conformance import checks, mutation_scores, profiles
from accelkit_conformance.certification import MANDATORY
from accelkit_conformance.mutants import all_mutants
from accelkit_conformance.results import MEANING

START, END = (
    "<!-- generated from the checks' docstrings by python -m accelkit_conformance.generate_docs -->",
    "<!-- end of the generated text -->",
)

NAMES = {
    "accelerator": "accelerator",
    "precision": "precision",
    "cluster": "cluster environment",
    "strategy": "strategy",
    "hooks": "hook plugin",
}
"""The name of each kind of plugin on the page."""


def generated() -> str:
    """Return the generated text of a page, as Markdown.

    The text describes the kinds of results, every area with its checks, and the numbers of tests and mutants for each kind of plugin. It
    ends with the mutation scores.
    """
    outcomes = mutation_scores.read()
    scores = mutation_scores.recorded_rows(outcomes)
    lines = ["## Results", "", "| kind | meaning |", "|---|---|", *(f"| {kind} | {meaning} |" for kind, meaning in MEANING.items()), ""]
    lines += ["## What each area asserts", ""]
    for area in checks.AREAS:
        module = importlib.import_module(f"accelkit_conformance.areas.{area}")
        mandatory = " (mandatory)" if area in MANDATORY else ""
        lines += [
            f"### {area}{mandatory}",
            "",
            textwrap.fill(_one_line(module.__doc__), 100, break_long_words=False, break_on_hyphens=False),
            "",
            "| check | first in | asserts | needs |",
            "|---|---|---|---|",
        ]
        for one in checks.checks_of(area):
            of = (
                "" if one.kind == "accelerator" else " (every kind of plugin)" if one.kind == checks.EVERY_KIND else f" ({NAMES[one.kind]})"
            )
            needs = ", ".join(f"`{key}`" for key in (*one.requires, *([one.probes] if one.probes else [])))
            first = profiles.first_profiles()[f"{area}/{one.name}"]
            lines.append(f"| `{one.name}`{of} | {first} | {_one_line(one.description)} | {needs} |")
        lines.append("")
    lines += [*_numbers(scores), *mutation_scores.section(scores, outcomes)]
    return "\n".join(lines).rstrip() + "\n"


def _numbers(scores: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the section that says, for each kind of plugin, how many tests each profile has, and how many mutants were detected.

    Args:
        scores: The scores of the hand-written mutants (``mutation_scores.rows``).
    """
    minors = [path.stem.removeprefix("torch-") for path in profiles.FOLDER.glob("torch-*.txt")]
    newest = max(minors, key=lambda one: [int(number) for number in one.split(".")])
    text = (
        f"The table shows the number of tests in each profile with torch {newest}. With other versions, only the number of tests for "
        "accelerators differs. "
        "The last three columns say how many broken plugins were written by hand, how many of these have been run since the selftest "
        "began to record its results, and how many were detected. A plugin counts as detected if a test of the area that the plugin "
        "breaks failed."
    )
    rows, num_mutants = [], collections.Counter(one.kind for one in all_mutants())
    for kind in checks.SUBJECT_KINDS:
        tests = [f"{len(profiles.suite(profile, newest, kind).tests):,}" for profile in checks.PROFILES]
        of_kind = [one for one in scores if one["kind"] == kind]
        run, detected = (sum(one[column] for one in of_kind) for column in ("mutants", "full"))
        rows.append([NAMES[kind], *tests, num_mutants[kind], run, detected])
    head = ["kind", *(f"`{profile}`" for profile in checks.PROFILES), "mutants", "run", "detected"]
    return ["## Tests and mutants of each kind of plugin", "", *textwrap.wrap(text, 100), "", *mutation_scores.table(head, rows), ""]


def written(page: str) -> str:
    """Return the text between the two markers of a page, or an empty string if the markers are missing."""
    found = re.search(f"{re.escape(START)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    return found[1] if found else ""


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def update(path: Path) -> None:
    """Replace the text between the markers ``START`` and ``END`` in the page ``path`` with ``generated()``.

    Raises:
        UsageError: If the page does not contain both markers.
    """
    before, start, rest = path.read_text("utf-8").partition(START + "\n")
    _, end, after = rest.partition(END)
    if not start or not end:
        raise UsageError(
            f"{path} is not changed, because it does not contain the two markers of the generated text",
            hint=f"write these two lines where the generated text belongs: {START} and {END}",
        )
    path.write_text(f"{before}{START}\n{generated()}{END}{after}", "utf-8")


if __name__ == "__main__":
    update(Path(sys.argv[1]))
