"""Determine the result of a check from the expected failures and from the error that the check raised. This module runs in worker
processes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from accelkit.errors import message_in_one_line
from accelkit_conformance import checks
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.failed_step import failed_step
from accelkit_conformance.results import DECLARED_NONE, Absent, Kind, NotSupported, Result, WrongError
from accelkit_conformance.subject import SampleFailure, Subject


def judge(subject: Subject, test: str, error: BaseException | None, expected: Sequence[Expectation]) -> Result:
    """Return the result of a check that has been called.

    Args:
        subject: The plugin under test. Its attribute ``failures`` contains the inputs on which the check failed.
        test: The id of the test.
        error: The error that the check raised, or None.
        expected: The expected failures of the test.
    """
    found, parameters = checks.find(test)
    if isinstance(error, NotSupported):
        return Result(test, "unsupported", reason=str(error))
    if subject.unsupported and error is None and not subject.failures:
        return Result(test, "unsupported", reason=str(subject.unsupported[0]))
    if error is not None:
        matching = next((one for one in expected if not one.sample and one.explains(error)), None)
        subject.failures.append(SampleFailure("", error, "", matching))
    surprises = [failure for failure in subject.failures if failure.expectation is None]
    keys = [checks.capability(key, parameters) for key in (*found.requires, *([found.probes] if found.probes else []))]
    undeclared = [key for key in keys if subject.capabilities[key] == "undeclared"]
    wrong = [failure for failure in surprises if _is_wrong(failure.error)]
    surprise = next(iter(wrong or surprises), None)
    probed = checks.capability(found.probes, parameters) if found.probes else ""
    if probed and subject.capabilities[probed] == "none":
        if subject.failures:
            return _failed(test, "unsupported", subject.failures[0], f"{probed}: {DECLARED_NONE}, and does not work (", ")")
        return Result(test, "over-unsupported", reason=f"{probed} works, although it is declared none: declare it")
    if surprise is not None and undeclared and not wrong:
        which = f" for {len(surprises)} of {subject.num_samples} inputs" if subject.num_samples else ""
        return _failed(test, "unsupported", surprise, f"{', '.join(undeclared)}: undeclared, and does not work{which} (", ")")
    if surprise is not None:
        on = f"on {subject.accelerator.name}: " if subject.record.kind != "accelerator" and subject.is_loaded else ""
        num_failed = sum(bool(one.sample) for one in surprises)
        count = f" ({num_failed} of {subject.num_samples} inputs)" if num_failed else ""
        where = f"{surprise.sample}: " if surprise.sample else ""
        return _failed(test, _kind_of(surprise.error), surprise, f"{on}{where}", count)
    strict = [one for one in expected if not one.is_torch_defect]
    whole = [one for one in strict if not one.sample]  # the other expectations apply only to the inputs that they select
    if subject.passed_though_expected or (whole and not subject.failures):
        which = f" ({subject.passed_though_expected[0]})" if subject.passed_though_expected else ""
        return Result(test, "unexpected-pass", reason=f"declared to fail, but it passes{which}: {strict[0].reason}")
    if subject.failures:
        # Prefer a failure that the plugin declares, so that the reason is torch's only if torch causes all failures of the test.
        explained = [(one.error, one.expectation) for one in subject.failures if one.expectation is not None]
        error, expectation = min(explained, key=lambda one: one[1].is_torch_defect)
        return Result(test, "expected-failure", reason=expectation.explanation, error=type(error).__name__)
    return Result(test, "pass")


def _failed(test: str, kind: Kind, failure: SampleFailure, before: str, after: str) -> Result:
    """Return the result of a check that failed on an input.

    The ``reason`` of the result is the text ``before``, the error in one line, and the text ``after``. If the error was reported late, or
    was raised in a helper function of the suite, a note directly before the error says so.
    """
    error, step = failure.error, failed_step(failure.error)
    said = "reported late: " if step == "end" else ""
    if step.startswith("helper "):
        said = f"in the suite's helper function {step.removeprefix('helper ')}(): "
    return Result(
        test,
        kind,
        reason=f"{before}{said}{_line(error)}{after}",
        error=type(error).__name__,
        step=step,
        detail="".join(traceback.format_exception(error))[-4000:],
        reproducer=failure.reproducer,
    )


def _is_wrong(error: BaseException) -> bool:
    """Return whether an error shows that the device computes wrong results. Any other error may mean that the device lacks a capability.

    A device that lacks a capability usually raises an error. If the device raises no error, but the call has no effect (for example, if
    autocast leaves the dtype unchanged), the check raises ``Absent``, which does not count as a wrong result.
    """
    return failed_step(error) == "comparison" and not isinstance(error, (WrongError, Absent))


def _kind_of(error: BaseException) -> Kind:
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, WrongError):
        return "wrong-error"
    if "AcceleratorError" in names:
        return "crash"
    return "oom" if "OutOfMemoryError" in names or isinstance(error, MemoryError) else "fail"


def _line(error: BaseException) -> str:
    """Return the class name and the message of an error in one line.

    For an AssertionError, return only the message or, if there is none, the source line of the failed assertion.
    """
    text = message_in_one_line(error)[:400]
    if not text and isinstance(error, AssertionError) and (frames := traceback.extract_tb(error.__traceback__)):
        return f"assertion failed: {(frames[-1].line or '').removeprefix('assert ')}"
    return text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text}"
