"""Errors that an asynchronous device reports after the call that caused them has returned. Runs in worker processes."""

from __future__ import annotations

from accelkit import UnsupportedError
from accelkit_conformance.subject import Subject


def wait_for_late_errors(subject: Subject) -> None:
    """Wait for the work of a test, so that an error that the device reports late is an error of this test and not of the next one.

    On a device that cannot be waited for, a tensor is copied to the host, which waits too.
    """
    if not subject.is_loaded:
        return
    try:
        subject.accelerator.synchronize(subject.device)
    except UnsupportedError:
        import torch

        torch.ones((), device=subject.device).cpu()
