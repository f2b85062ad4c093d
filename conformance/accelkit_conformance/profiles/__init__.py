"""Profiles: frozen lists of test ids, so that two reports of one profile cover the same tests.

There is one file, ``torch-<version>.txt``, for each minor version of torch. ``python -m accelkit_conformance.freeze_profiles`` generates
the file for the installed version of torch from the checks. A test of accelkit fails if this file does not agree with the checks.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from accelkit import UnsupportedError, UsageError
from accelkit_conformance import checks
from accelkit_conformance.checks import PROFILES, Profile
from accelkit_conformance.profiles.aten_names import tests_of

FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a profile.

    Attributes:
        profile: The name of the profile.
        torch: The minor version of torch, such as ``2.13``.
        tests: The ids of the tests, in the order in which the file for this version of torch lists them.
        digest: The SHA-256, as a hexadecimal number, of the sorted ids joined by newlines.
    """

    profile: Profile
    torch: str
    tests: tuple[str, ...]
    digest: str


def suite(profile: Profile, torch_version: str, kind: str = "accelerator") -> Suite:
    """Return the tests of a profile for a version of torch and a kind of plugin. Does not import torch.

    Raises:
        UnsupportedError: If there is no list of tests for this version of torch.
    """
    minor = ".".join(torch_version.split(".")[:2])
    held = PROFILES[: PROFILES.index(profile) + 1]
    entries = _read(minor)
    tests = tuple(test for first, test in entries if first in held and checks.find(test)[0].is_for(kind))
    return Suite(profile, minor, tests, hashlib.sha256("\n".join(sorted(tests)).encode()).hexdigest())


def select(tests: Sequence[str], patterns: Iterable[str]) -> list[str]:
    """Return the tests that match at least one of the patterns, in the order of ``tests``.

    A pattern is a glob for ids (brackets are literal) or the name of an area. A pattern that matches no test in this way is treated as a
    substring of an id or, if no id contains it, as an ATen operator such as ``aten::mm``.

    Raises:
        UsageError: If a pattern matches no test.
    """
    import fnmatch

    found: set[str] = set()
    for pattern in patterns:
        glob = pattern.replace("[", "[[]")
        matching = [test for test in tests if fnmatch.fnmatchcase(test, glob) or checks.area_of(test) == pattern]
        matching = matching or [test for test in tests if pattern in test]
        matching = matching or (tests_of(pattern, tests) if pattern.startswith("aten::") else [])
        if not matching:
            hint = "accelkit conformance list shows the tests; * stands for any text, and brackets stand for themselves"
            raise UsageError(f"{pattern!r} matches no test of this profile", hint=hint)
        found |= set(matching)
    return [test for test in tests if test in found]


@functools.cache
def first_profiles() -> dict[str, Profile]:
    """Return, for each check (``area/check``), the smallest profile that contains a test of the check for at least one version of torch."""
    smallest: dict[str, Profile] = {}
    for path in sorted(FOLDER.glob("torch-*.txt")):
        for profile, test in _read(path.stem.removeprefix("torch-")):
            check = test.partition("[")[0]
            smallest[check] = min(profile, smallest.get(check, profile), key=PROFILES.index)
    return smallest


@functools.cache
def _read(minor: str) -> tuple[tuple[Profile, str], ...]:
    path = FOLDER / f"torch-{minor}.txt"
    if not path.exists():
        minors = [one.stem.removeprefix("torch-") for one in FOLDER.glob("torch-*.txt")]
        known = ", ".join(sorted(minors, key=lambda one: [int(number) for number in one.split(".")]))
        raise UnsupportedError(
            f"there is no list of tests for torch {minor}",
            why=f"there are lists for torch {known}",
            hint="install one of these versions or a newer accelkit, or make a list: python -m accelkit_conformance.freeze_profiles",
        )
    found: list[tuple[Profile, str]] = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            word, test, *last = line.split(" ")
            first: Profile = word  # type: ignore[assignment]
            found += [(first, test.replace("*", value)) for value in last] if last else [(first, test)]
    return tuple(found)
