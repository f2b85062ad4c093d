"""Determine the result of a check from the error that it raised and the expected failures. Runs in worker processes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from accelkit_conformance import checks
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.results import DECLARED_NONE, Kind, NotSupported, Result, WrongError
from accelkit_conformance.subject import SampleFailure, Subject


def judge(subject: Subject, test: str, error: BaseException | None, expected: Sequence[Expectation]) -> Result:
    """Return the result of a check that has been called.

    Args:
        subject: The subject, with the failures that were recorded for inputs of the check.
        test: The id of the test.
        error: The error that the check raised, or None.
        expected: The expected failures of the test.
    """
    found, parameters = checks.find(test)
    if isinstance(error, NotSupported):
        return Result(test, "unsupported", reason=str(error))
    if error is not None:
        matching = next((one for one in expected if not one.sample and one.explains(error)), None)
        subject.failures.append(SampleFailure("", error, "", matching))
    surprises = [failure for failure in subject.failures if failure.expectation is None]
    surprise = surprises[0] if surprises else None
    keys = [checks.capability(key, parameters) for key in (*found.requires, *([found.probes] if found.probes else []))]
    undeclared = [key for key in keys if subject.capabilities[key] == "undeclared"]
    probed = checks.capability(found.probes, parameters) if found.probes else ""
    if probed and subject.capabilities[probed] == "none":
        if subject.failures:
            return Result(test, "unsupported", reason=f"{probed}: {DECLARED_NONE}, and does not work ({_line(subject.failures[0].error)})")
        return Result(test, "over-unsupported", reason=f"{probed} works, although it is declared none: declare it")
    if surprise is not None and undeclared:
        return Result(test, "unsupported", reason=f"{', '.join(undeclared)}: undeclared, and does not work ({_line(surprise.error)})")
    if surprise is not None:
        on = f"on {subject.accelerator.name}: " if subject.record.kind != "accelerator" and subject.is_loaded else ""
        count = f" ({len(surprises)} of {subject.num_samples} inputs)" if subject.num_samples else ""
        where = f"{surprise.sample}: " if surprise.sample else ""
        return Result(
            test,
            _kind_of(surprise.error),
            reason=f"{on}{where}{_line(surprise.error)}{count}",
            error=type(surprise.error).__name__,
            detail="".join(traceback.format_exception(surprise.error))[-4000:],
            reproducer=surprise.reproducer,
        )
    whole = [one for one in expected if not one.sample]  # the others apply only to the inputs that they select
    if subject.passed_though_expected or (whole and not subject.failures):
        which = f" ({subject.passed_though_expected[0]})" if subject.passed_though_expected else ""
        return Result(test, "unexpected-pass", reason=f"declared to fail, but it passes{which}: {expected[0].reason}")
    if subject.failures:
        first = subject.failures[0]
        assert first.expectation is not None
        reason = f"{first.expectation.reason} ({first.expectation.issue})"
        return Result(test, "expected-failure", reason=reason, error=type(first.error).__name__)
    return Result(test, "pass")


def _kind_of(error: BaseException) -> Kind:
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, WrongError):
        return "wrong-error"
    if "AcceleratorError" in names:
        return "crash"
    return "oom" if "OutOfMemoryError" in names or isinstance(error, MemoryError) else "fail"


def _line(error: BaseException) -> str:
    """Return the error in one line. The class name is omitted if it is an AssertionError with a message."""
    text = " ".join(str(error).split())[:400]
    if not text and isinstance(error, AssertionError) and (frames := traceback.extract_tb(error.__traceback__)):
        return f"assertion failed: {(frames[-1].line or '').removeprefix('assert ')}"
    return text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text}"
