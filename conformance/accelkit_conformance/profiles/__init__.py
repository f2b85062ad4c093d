"""Profiles: frozen lists of test ids, one file a torch minor, so that two reports of one profile are about the same tests.

``python -m accelkit_conformance.freeze_profiles`` writes the file of the installed torch anew; a test holds it against the code.
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

FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a profile.

    Attributes:
        profile: Its name.
        torch: The torch minor that it is for, as ``2.13``.
        tests: Ids, in the order in which they are listed.
        digest: SHA-256 over the ids, in hexadecimal.
    """

    profile: Profile
    torch: str
    tests: tuple[str, ...]
    digest: str


def suite(profile: Profile, torch_version: str, kind: str = "accelerator") -> Suite:
    """The tests of a profile for this torch and this kind of plugin. Imports no torch.

    Raises:
        UnsupportedError: If there is no list for this torch.
    """
    minor = ".".join(torch_version.split(".")[:2])
    held = PROFILES[: PROFILES.index(profile) + 1]
    entries = _read(minor)
    tests = tuple(test for first, test in entries if first in held and checks.find(test)[0].kind == kind)
    return Suite(profile, minor, tests, hashlib.sha256("\n".join(sorted(tests)).encode()).hexdigest())


def select(tests: Sequence[str], patterns: Iterable[str]) -> list[str]:
    """The tests that one of the patterns means: a glob over ids (brackets are brackets), an area, or a part of an id.

    Raises:
        UsageError: If a pattern means none.
    """
    import fnmatch

    found: set[str] = set()
    for pattern in patterns:
        glob = pattern.replace("[", "[[]")
        matching = [test for test in tests if fnmatch.fnmatchcase(test, glob) or checks.area_of(test) == pattern]
        matching = matching or [test for test in tests if pattern in test]
        if not matching:
            raise UsageError(f"{pattern!r} selects no test of this profile", hint="accelkit conformance list shows them")
        found |= set(matching)
    return [test for test in tests if test in found]


@functools.cache
def _read(minor: str) -> tuple[tuple[Profile, str], ...]:
    path = FOLDER / f"torch-{minor}.txt"
    if not path.exists():
        minors = [one.stem.removeprefix("torch-") for one in FOLDER.glob("torch-*.txt")]
        known = ", ".join(sorted(minors, key=lambda one: [int(number) for number in one.split(".")]))
        raise UnsupportedError(
            f"there is no list of tests for torch {minor}",
            why=f"profiles are frozen for torch {known}",
            hint="install one of these, or a newer accelkit; for a torch of your own: python -m accelkit_conformance.freeze_profiles",
        )
    found: list[tuple[Profile, str]] = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            word, test, *last = line.split(" ")
            first: Profile = word  # type: ignore[assignment]
            found += [(first, test.replace("*", value)) for value in last] if last else [(first, test)]
    return tuple(found)
