"""Checks that new tensors do not get memory to which queued work still writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.device_streams import make_stream, on_stream
from accelkit_conformance.oracle.queued_copies import keep_busy

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_LENGTHS = (1, 1000, 1 << 18)
_OLD, _NEW = 40.0, 4.5


def _write_pinned_part(pinned: torch.Tensor, source: torch.Tensor) -> None:
    pinned[len(pinned) // 3 :].copy_(source[len(source) // 3 :], non_blocking=True)


WRITERS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "results": lambda pinned, source: (source * 2 + 1).exp(),
    "copies_to_the_device": lambda pinned, source: torch.zeros_like(source).copy_(pinned, non_blocking=True),
    "copies_to_the_host": lambda pinned, source: pinned.copy_(source, non_blocking=True),
    "copies_to_a_slice": _write_pinned_part,
}
"""Functions that queue work that writes to memory, by name. Each takes a tensor in pinned memory and a tensor of the same length on the
device. The work writes to the first tensor or to new tensors."""

_NEW_TENSORS: dict[str, Callable[[torch.device, int], torch.Tensor]] = {
    "pin_memory": lambda device, length: torch.full((length,), _NEW).pin_memory(),
    "empty in pinned memory": lambda device, length: torch.empty(length, pin_memory=True).fill_(_NEW),
    "full": lambda device, length: torch.full((length,), _NEW, device=device),
    "to": lambda device, length: torch.full((length,), _NEW).to(device),
    "to, from pinned memory": lambda device, length: torch.full((length,), _NEW).pin_memory().to(device, non_blocking=True),
    "to the host": lambda device, length: torch.full((length,), _NEW, device=device).to("cpu", non_blocking=True),
    "resize_": lambda device, length: torch.empty(0, device=device).resize_(length).fill_(_NEW),
    "a storage": lambda device, length: torch.empty(0, device=device).set_(torch.UntypedStorage(4 * length, device=device)).fill_(_NEW),  # type: ignore[call-overload]
}
"""Ways to create a tensor with the given number of elements, all of which equal ``_NEW``, by name."""


def check_reused_memory(subject: Subject, writer: str) -> None:
    """Check that new tensors keep their values even if memory was freed shortly before, while queued work was still writing to it.

    If the device has streams and there is a second device, memory is also freed on the second device, and a tensor is then copied to the
    second device on a new stream of the first. Tensors with wrong values are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        writer: The work that writes the memory: a name in ``WRITERS``.
    """

    def full_after_empty_cache(device: torch.device, length: int) -> torch.Tensor:
        subject.accelerator.empty_cache()
        return torch.full((length,), _NEW, device=device)

    ways = {name: (subject.device, make) for name, make in {**_NEW_TENSORS, "full, after empty_cache": full_after_empty_cache}.items()}
    if subject.capabilities.can("streams") and subject.capabilities.can("numbered_devices") and len(subject.devices) > 1:
        ways["to another device, on a new stream"] = (
            subject.second_device(),
            lambda device, length: _copied_on_a_stream(subject, device, length),
        )
    for length in _LENGTHS:
        for name, (device, make) in ways.items():
            with subject.sample(f"{name}, {length} elements", {"name": name, "length": length}):
                pinned, source = torch.full((length,), _OLD).pin_memory(), torch.full((length,), _OLD + 1, device=device)
                subject.synchronize()
                subject.accelerator.synchronize(device)
                keep_busy(device, 1)
                WRITERS[writer](pinned, source)
                del pinned, source
                new = make(device, length)
                subject.accelerator.synchronize(device)
                wrong = int((new.cpu() != _NEW).sum())
                assert not wrong, f"{wrong} of {length} elements of a new tensor were overwritten by work that was queued earlier"


def _copied_on_a_stream(subject: Subject, device: torch.device, length: int) -> torch.Tensor:
    source = torch.full((length,), _NEW, device=subject.device)
    subject.synchronize()
    stream = make_stream(subject)
    with on_stream(subject, stream):
        found = source.to(device)
    stream.synchronize()
    return found
