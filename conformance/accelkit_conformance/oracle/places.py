"""Run a call on another device, in another thread, on another stream, or after an error. Check the current device of each thread."""

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


def check_devices_of_threads(subject: Subject) -> None:
    """Check that a device that one thread makes current does not become current in another thread.

    Raises:
        AssertionError: If it does.
        NotSupported: If there is only one device.
    """
    other, module = subject.second_device(), subject.module
    found: dict[str, int] = {}
    is_set, is_seen = threading.Event(), threading.Event()

    def run() -> None:
        with module.device(other):
            found["inside"] = module.current_device()
            is_set.set()
            is_seen.wait(10)
            found["later"] = module.current_device()
        module.set_device(other)

    thread = threading.Thread(target=run, name="accelkit-conformance-device")
    thread.start()
    is_set.wait(10)
    current, made = module.current_device(), torch.empty(1, device=subject.device_type).device
    module.set_device(subject.device)
    is_seen.set()
    thread.join()
    assert found == {"inside": other.index, "later": other.index}, f"in a thread on {other}, the current device was {found}"
    for when, index in {"while another thread used": current, "after another thread chose": module.current_device()}.items():
        assert index == subject.device.index, f"{when} {other}, the current device was {index}, not {subject.device.index}"
    assert made == subject.device, f"while another thread used {other}, a tensor without an index was created on {made}"
