"""What came of a test: its kind, and everything needed to understand it. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from accelkit import untrusted_json

Kind = Literal[
    "pass", "fail", "wrong-error", "crash", "timeout", "oom", "flaky", "expected-failure", "unexpected-pass", "unsupported",
    "over-unsupported"
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
BAD: tuple[Kind, ...] = ("fail", "wrong-error", "crash", "timeout", "oom", "unexpected-pass", "over-unsupported")
"""What makes a run fail."""
RERUN: tuple[Kind, ...] = ("fail", "wrong-error", "crash", "timeout", "oom")
"""What is tried again: one that passes then is flaky."""

DECLARED_NONE = "declared none"
"""What an unsupported result's reason says where the capability is declared none: then there is nothing to run."""

MEANING: Mapping[Kind, str] = {
    "pass": "it holds",
    "fail": "it does not hold",
    "wrong-error": "an error was due, and another one came",
    "crash": "the process died",
    "timeout": "no answer within the time limit; the process was killed",
    "oom": "out of memory",
    "flaky": "it failed, and passed when it was run again: neither a pass nor a failure, and never certified",
    "expected-failure": "it fails as declared",
    "unexpected-pass": "it is declared to fail, and passes",
    "unsupported": "the capability is declared none, or undeclared and not there",
    "over-unsupported": "the capability is declared none, and works",
}


class WrongError(AssertionError):
    """An error was due, and another one came."""


class NotSupported(Exception):
    """There is nothing to assert on this machine: the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of one test.

    Attributes:
        id: The test.
        kind: What came of it.
        seconds: How long the last attempt took.
        reason: Why it is not a pass: one line.
        error: The class of the error, if there was one.
        detail: Traceback, or the last lines that a process that died had written.
        reproducer: A program that shows the failure.
        attempts: How often it was run.
        worker: Which worker process ran it.
        notes: Remarks, as 'fell back to the CPU'.
        samples: How many inputs were tried.
        seen: ATen overloads that this worker saw on the device for the first time.
    """

    id: str
    kind: Kind
    seconds: float = 0.0
    reason: str = ""
    error: str = ""
    detail: str = ""
    reproducer: str = ""
    attempts: int = 1
    worker: int = 0
    notes: tuple[str, ...] = ()
    samples: int = 0
    seen: tuple[str, ...] = ()

    @property
    def is_declared_none(self) -> bool:
        """Whether there was nothing to run, because the capability is declared none."""
        return self.kind == "unsupported" and DECLARED_NONE in self.reason

    def as_dict(self) -> dict[str, Any]:
        """Without what is empty."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value or name in ("id", "kind", "seconds")}

    @classmethod
    def from_dict(cls, fields: object) -> Self:
        """What ``as_dict`` gave.

        Raises:
            ValueError: If a field has not the type that it should have.
        """
        return untrusted_json.decode(cls, fields)
