"""Freeze the profiles: ``python -m accelkit_conformance.freeze_profiles`` writes the list of tests for the installed torch."""

from __future__ import annotations

from collections.abc import Iterable

from accelkit_conformance import checks
from accelkit_conformance.checks import Profile
from accelkit_conformance.profiles import FOLDER


def current() -> list[tuple[Profile, str]]:
    """Return the id of every test for the installed torch, with the first profile that includes it. This function imports torch."""
    return [entry for one in checks.all_checks() for entry in one.ids()]


def written(entries: Iterable[tuple[Profile, str]]) -> str:
    """Return the text of a profile file.

    Tests that have several parameters share one line if they are in the same profile and differ only in the last parameter.
    """
    lines: dict[tuple[str, str], list[str]] = {}
    for profile, test in entries:
        head, comma, last = test.removesuffix("]").rpartition(",")
        key = f"{head},*]" if comma else test
        lines.setdefault((profile, key), []).extend([last] if comma else [])
    text = [" ".join([profile, test, *last]) for (profile, test), last in lines.items()]
    return "\n".join(["# Made by python -m accelkit_conformance.freeze_profiles: profile, test, values of * in it.", *text]) + "\n"


if __name__ == "__main__":
    import torch

    name = ".".join(torch.__version__.split(".")[:2])
    (FOLDER / f"torch-{name}.txt").write_text(written(current()), "utf-8")
