"""Streams and events.

A kernel runs on the caller's thread, after all earlier work on the same stream. Non-blocking copies between pinned host memory and the
device run on a thread that belongs to the stream.
"""

from __future__ import annotations

from typing import Any

import torch

from accelkit_fake_xpu.device_module.devices import Device, index_of


class Stream(torch.Stream):
    """A queue of work on a device.

    Besides its default stream, a device has 32 streams. The constructor returns these 32 streams in turn, and starts over after the last
    one.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **identity: Any) -> Stream:
        if identity:  # stream_id, device_index, device_type: an existing stream
            return super().__new__(cls, **identity)
        return super().__new__(cls, device=torch.device("fake_xpu", index_of(device)), priority=priority)


class Event:
    """An event of the fake XPU. The constructor returns a ``torch.Event``, for example ``Event(enable_timing=True)``.

    Raises:
        NotImplementedError: If ``interprocess`` is True.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> torch.Event:  # type: ignore[misc]
        if interprocess:
            raise NotImplementedError("fake_xpu events cannot be shared between processes")
        return torch.Event("fake_xpu", enable_timing=enable_timing, blocking=blocking)


class stream:  # has the name of torch.cuda.stream
    """Context manager that makes ``stream`` the current stream of its device, and makes this device current.

    If ``stream`` is None, nothing changes.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exc_info)


def current_stream(device: Device = None) -> torch.Stream:
    """Return the current stream of this thread on ``device``."""
    return _known(torch.accelerator.current_stream(index_of(device)))


def default_stream(device: Device = None) -> torch.Stream:
    """Return the default stream of ``device``, which is current until another stream is made current."""
    current = torch.accelerator.current_stream(index_of(device))
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream | None) -> None:
    """Make ``stream`` the current stream of its device, and make this device current. Does nothing if ``stream`` is None."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def synchronize(device: Device = None) -> None:
    """Wait until all work that was queued on ``device`` has run."""
    torch.accelerator.synchronize(index_of(device))


def _known(stream: torch.Stream) -> torch.Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
