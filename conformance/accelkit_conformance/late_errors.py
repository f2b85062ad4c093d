"""Errors that an asynchronous device reports after the call that caused them has returned. This module runs in worker processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from accelkit import UnsupportedError
from accelkit_conformance.results import Absent, WrongError
from accelkit_conformance.subject import Subject


def wait_for_late_errors(subject: Subject) -> None:
    """Wait, if possible, until the device has finished a test, so that a late error of this test does not make the next test fail.

    This function calls the accelerator's ``synchronize``. If the accelerator does not support ``synchronize``, this function copies a
    zero-dimensional tensor from the device to the host. If such a copy is not possible either, this function does not wait. If the device
    reports an error during the wait, this function raises it.
    """
    if not subject.is_loaded:
        return
    try:
        subject.accelerator.synchronize(subject.device)
    except UnsupportedError:
        if subject.accelerator.name not in subject.without_numbers:
            _copy_number(subject)


def find_out_about_numbers(subject: Subject) -> None:
    """Add the accelerator to ``subject.without_numbers`` if a zero-dimensional float32 tensor cannot be copied to its device and
    back.

    Some devices hold only tensors of a certain shape or dtype. This function is called after the accelerator is loaded, before the first
    test.
    """
    try:
        _copy_number(subject)
    except Exception:  # whatever the error is, copying a tensor cannot be used to wait for the device
        subject.without_numbers.add(subject.accelerator.name)


def _copy_number(subject: Subject) -> None:
    import torch

    torch.ones((), device=subject.device).cpu()


@contextlib.contextmanager
def raises(subject: Subject, *errors: type[BaseException], about: str = "", doing: str, may_be_absent: bool = False) -> Iterator[None]:
    """Context manager that asserts that the block raises one of ``errors``, and that the error's text contains ``about``.

    At the end of the block, this function waits for the device, because an asynchronous device may report the error late.

    Args:
        subject: The plugin under test.
        errors: The classes of errors that the block may raise.
        about: Text that the error message must contain. Case is ignored.
        doing: What the block does, for the message of a failure.
        may_be_absent: Whether a missing error can mean that the device lacks the tested capability. If True and no error is raised,
            this function raises ``Absent``.

    Raises:
        AssertionError: If the block raises no error and ``may_be_absent`` is False.
        Absent: If the block raises no error and ``may_be_absent`` is True.
        WrongError: If the block raises an error that is not one of ``errors``, or whose text does not contain ``about``.
    """
    try:
        yield
        wait_for_late_errors(subject)
    except errors as error:
        if about.lower() not in str(error).lower():
            raise WrongError(f"{doing}: the error does not mention {about!r}: {error}") from error
    except Exception as error:
        due = " or ".join(one.__name__ for one in errors)
        raise WrongError(f"{doing} raised {type(error).__name__} instead of {due}: {error}") from error
    else:
        raise (Absent if may_be_absent else AssertionError)(f"{doing} did not raise an error")


def still_computes(subject: Subject) -> bool:
    """Return whether the device still computes. After some errors, such as CUDA's device-side assertions, it does not."""
    import torch

    try:
        return bool((torch.ones(2, device=subject.device) * 2).cpu().sum() == 4)
    except Exception:
        return False
