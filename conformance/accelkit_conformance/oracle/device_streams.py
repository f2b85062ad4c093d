"""Streams and events of the device: those of torch itself or, for a device that is not torch's accelerator, those of the device's
module."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def make_stream(subject: Subject, device: torch.device | None = None) -> Any:
    """Return a new stream of ``device``, by default the device under test."""
    device = device or subject.device
    return torch.Stream(device=device) if _is_accelerator(subject) else subject.function("Stream")(device=device)


def current_stream(subject: Subject, device: torch.device | None = None) -> Any:
    """Return the current stream of ``device``, by default the device under test."""
    device = device or subject.device
    return torch.accelerator.current_stream(device) if _is_accelerator(subject) else subject.function("current_stream")(device)


def on_stream(subject: Subject, stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager that makes ``stream`` current."""
    return stream if _is_accelerator(subject) else subject.function("stream")(stream)  # type: ignore[no-any-return]


def make_event(subject: Subject, **options: bool) -> Any:
    """Return a new event. ``options`` are those of ``torch.Event``, such as ``enable_timing``."""
    return torch.Event(subject.device, **options) if _is_accelerator(subject) else subject.function("Event")(**options)


def _is_accelerator(subject: Subject) -> bool:
    current = torch.accelerator.current_accelerator()
    return current is not None and current.type == subject.device_type
