"""The result of a test: its kind, and everything needed to understand it. This module does not import torch."""

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
"""The kinds of result that make a run fail."""
RERUN: tuple[Kind, ...] = ("fail", "wrong-error", "crash", "timeout", "oom")
"""The kinds of result after which a test is run again. A test that then passes is flaky, unless it crashed before."""
CRASHED: tuple[Kind, ...] = ("crash", "timeout")
"""The kinds of result that remain failures even if the test passes when it is run again."""

TRIGGERED = "the fault was triggered"
"""The note that is added to a test's result if the fault of a generated mutant has changed what an operator returned."""

DECLARED_NONE = "declared none"
"""Text in the reason of an unsupported result. It means that nothing was run, because the capability is declared ``none``."""

MEANING: Mapping[Kind, str] = {
    "pass": "the assertion holds",
    "fail": "the assertion does not hold",
    "wrong-error": "an error was expected, and a different one was raised",
    "crash": "the process died, or the driver reported a device error (torch.AcceleratorError); a failure even if it passes when run again",
    "timeout": "no answer within the time limit, so the process was killed; a failure even if it passes when run again",
    "oom": "out of memory",
    "flaky": "the test failed, and passed when it was run again; this counts as neither a pass nor a failure, and prevents certification",
    "expected-failure": "the test fails, as declared or because of a defect of torch",
    "unexpected-pass": "the test passes, although it is declared to fail",
    "unsupported": "the capability is declared none, or it is undeclared and raises an error or is missing",
    "over-unsupported": "the capability works, although it is declared none",
}


class WrongError(AssertionError):
    """Raised if a check expects an error and gets a different error."""


class WrongValues(AssertionError):
    """Raised if a comparison finds wrong values. Wrong values are a failure even if a capability that the test needs is undeclared."""


class WrongDtype(AssertionError):
    """Raised by a comparison if the dtype of a result differs from the dtype of the reference.

    Attributes:
        found: The dtype of the result, a ``torch.dtype``.
    """

    def __init__(self, found: Any, expected: Any) -> None:
        super().__init__(f"the result is {found}, not {expected}")
        self.found = found


class Absent(AssertionError):
    """Raised by a check if the device seems to lack the tested capability, although no call failed: for example, autocast has no effect.

    If a capability that the test needs is undeclared or declared ``none``, the result is ``unsupported``. Otherwise, the test fails.
    """


class NotSupported(Exception):
    """Raised by a check that does not apply to the plugin under test, or cannot run on this machine. The message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of one test.

    Attributes:
        id: The id of the test.
        kind: The kind of the result.
        seconds: The duration in seconds of the attempt that the result describes (see ``runner.combined``).
        reason: The reason why the test did not pass, in one line.
        error: The class name of the error, if there was one.
        step: The step of the test that failed: ``comparison``, ``operator``, ``helper NAME`` or ``end``. NAME is the function of the suite
            that prepared the test. The step is ``end`` if the device reported the error only after the test.
        detail: The traceback, or the last lines of output of a process that died.
        reproducer: A program that reproduces the failure.
        attempts: The number of times that the test was run.
        worker: The index of the worker process that ran the test, counted from 1. If several processes ran it, the index of the first.
        notes: Remarks such as 'fell back to the CPU'.
        samples: The number of inputs that were tried.
        seen: The ATen overloads that were recorded for this test and for no earlier test of the same worker process.
    """

    id: str
    kind: Kind
    seconds: float = 0.0
    reason: str = ""
    error: str = ""
    step: str = ""
    detail: str = ""
    reproducer: str = ""
    attempts: int = 1
    worker: int = 0
    notes: tuple[str, ...] = ()
    samples: int = 0
    seen: tuple[str, ...] = ()

    @property
    def is_declared_none(self) -> bool:
        """Whether the result is unsupported because a capability that the test uses is declared ``none``."""
        return self.kind == "unsupported" and DECLARED_NONE in self.reason

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary. Fields that are empty or 0 are left out, except ``seconds``."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value or name in ("id", "kind", "seconds")}

    @classmethod
    def from_dict(cls, fields: object) -> Self:
        """Create a result from the output of ``as_dict``.

        Raises:
            ValueError: If ``fields`` is not a dictionary, lacks ``id`` or ``kind``, or has a value of the wrong type.
        """
        return untrusted_json.decode(cls, fields)
