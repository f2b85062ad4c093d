"""Run a call on another device, in another thread, on another stream, or after an error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.device_streams import current_stream, make_stream, on_stream

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def run_at(subject: Subject, place: str, device: torch.device, call: Callable[[], list[Any]]) -> list[Any]:
    """Make a call on ``device`` and return its result. ``place`` is a value of ``condition_rows.AXES["place"]``."""
    if place == "another current device":
        with subject.module.device(device):
            return call()
    if place == "another stream":
        stream = make_stream(subject, device)
        stream.wait_stream(current_stream(subject, device))
        with on_stream(subject, stream):
            found = call()
        stream.synchronize()
        return found
    if place == "after an error":
        with contextlib.suppress(Exception), torch.no_grad():
            torch.ones(2, device=device) @ torch.ones(3, device=device)
        return call()
    if place != "another thread":
        return call()
    found_or_error: list[Any] = []

    def run() -> None:
        try:
            found_or_error.append(call())
        except Exception as error:
            found_or_error.append(error)

    thread = threading.Thread(target=run, name="accelkit-conformance-call")
    thread.start()
    thread.join()
    if isinstance(found_or_error[0], Exception):
        raise found_or_error[0]
    return found_or_error[0]  # type: ignore[no-any-return]
