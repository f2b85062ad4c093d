"""Generate documentation: what each area asserts, taken from the docstrings of its checks, and the mutation scores.

``python -m accelkit_conformance.generate_docs PAGE`` writes the documentation into a page. A test compares the page with the
code.
"""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from pathlib import Path

from accelkit_conformance import checks, mutation_scores, profiles
from accelkit_conformance.certification import MANDATORY
from accelkit_conformance.results import MEANING

START, END = (
    "<!-- generated from the checks' docstrings by python -m accelkit_conformance.generate_docs -->",
    "<!-- end of the generated text -->",
)


def generated(page: Path) -> str:
    """Return the kinds of results, every area with its checks, and the mutation scores in the folder of the page, as Markdown."""
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
            of = {"accelerator": "", checks.EVERY_KIND: " (of every kind)", "hooks": " (of a hook plugin)"}.get(
                one.kind, f" (of a {one.kind})"
            )
            needs = ", ".join(f"`{key}`" for key in (*one.requires, *([one.probes] if one.probes else [])))
            first = profiles.first_profiles()[f"{area}/{one.name}"]
            lines.append(f"| `{one.name}`{of} | {first} | {_one_line(one.description)} | {needs} |")
        lines.append("")
    lines += mutation_scores.section(mutation_scores.read(page.with_name(mutation_scores.FILE)))
    return "\n".join(lines).rstrip() + "\n"


def written(page: str) -> str:
    """Return the text between the marks of a page; an empty string if the marks are missing."""
    found = re.search(f"{re.escape(START)}\n(.*?){re.escape(END)}", page, re.DOTALL)
    return found[1] if found else ""


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    text = path.read_text("utf-8")
    path.write_text(text.replace(START + "\n" + written(text) + END, f"{START}\n{generated(path)}{END}"), "utf-8")
