"""The stages in which support for a new device is built, as listed in ``stages.toml``. The tests of a stage show whether it is complete."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

from accelkit_conformance.checks import Profile
from accelkit_conformance.results import BAD, Result


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One of the stages in which support for a new device is built.

    Attributes:
        name: A phrase such as ``computes``, which says what a device can do once it has passed the stage.
        tests: Patterns that select the tests of the stage.
        profile: The profile from which the tests are taken.
        needs: Text that says what the tests need in order to pass, such as functions of the driver and registrations with torch.
        page: A page of the documentation, relative to docs/.
    """

    name: str
    tests: tuple[str, ...]
    profile: Profile
    needs: str
    page: str


def read() -> list[Stage]:
    """Return the stages that ``stages.toml`` lists, in the order in which a new device should pass them."""
    found = tomllib.loads(Path(__file__).with_name("stages.toml").read_text("utf-8"))["stage"]
    return [Stage(**{**one, "tests": tuple(one["tests"])}) for one in found]


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of running the tests of a stage.

    Attributes:
        stage: The stage.
        num_tests: The number of tests that gave a result.
        num_unsupported: The number of tests with the result ``unsupported``.
        failed: The results of the tests that failed. The stage has passed if there are none.
    """

    stage: Stage
    num_tests: int
    num_unsupported: int
    failed: tuple[Result, ...]

    @classmethod
    def of(cls, stage: Stage, results: list[Result]) -> Outcome:
        num_unsupported = sum(result.kind == "unsupported" for result in results)
        return cls(stage, len(results), num_unsupported, tuple(result for result in results if result.kind in BAD))

    @property
    def counts(self) -> str:
        """A string such as ``39 of 41, 2 unsupported``. Its first number counts the tests that neither failed nor were unsupported."""
        unsupported = f", {self.num_unsupported} unsupported" if self.num_unsupported else ""
        return f"{self.num_tests - self.num_unsupported - len(self.failed)} of {self.num_tests}{unsupported}"
