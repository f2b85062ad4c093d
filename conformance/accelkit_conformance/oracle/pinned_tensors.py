"""Checks of tensors in pinned memory, and of copies whose source is overwritten or freed while the copy is still queued."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.device_streams import is_accelerator
from accelkit_conformance.oracle.places import run_at
from accelkit_conformance.oracle.queued_copies import keep_busy
from accelkit_conformance.profiles.operators import DTYPES
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_PINNED: dict[str, Callable[[Any, bool], torch.Tensor]] = {
    "empty": lambda like, is_pinned: torch.empty(3, 4, pin_memory=is_pinned),
    "empty_strided": lambda like, is_pinned: torch.empty_strided((3, 4), (1, 3), pin_memory=is_pinned),
    "empty_like": lambda like, is_pinned: torch.empty_like(like, device="cpu", pin_memory=is_pinned),
    "zeros": lambda like, is_pinned: torch.zeros(3, 4, pin_memory=is_pinned),
    "zeros of integers": lambda like, is_pinned: torch.zeros(3, dtype=torch.int64, pin_memory=is_pinned),
    "zeros_like": lambda like, is_pinned: torch.zeros_like(like, device="cpu", pin_memory=is_pinned),
    "ones": lambda like, is_pinned: torch.ones(3, 4, pin_memory=is_pinned),
    "ones_like": lambda like, is_pinned: torch.ones_like(like, device="cpu", pin_memory=is_pinned),
    "full": lambda like, is_pinned: torch.full((3, 4), 1.5, pin_memory=is_pinned),
    "full_like": lambda like, is_pinned: torch.full_like(like, 1.5, device="cpu", pin_memory=is_pinned),
    "arange": lambda like, is_pinned: torch.arange(5.0, pin_memory=is_pinned),
    "linspace": lambda like, is_pinned: torch.linspace(0, 1, 5, pin_memory=is_pinned),
    "eye": lambda like, is_pinned: torch.eye(3, pin_memory=is_pinned),
    "tensor": lambda like, is_pinned: torch.tensor([1.0, 2.0], pin_memory=is_pinned),
    "rand": lambda like, is_pinned: torch.rand(3, 4, pin_memory=is_pinned),
    "randn": lambda like, is_pinned: torch.randn(3, 4, pin_memory=is_pinned),
    "randint": lambda like, is_pinned: torch.randint(9, (3,), pin_memory=is_pinned),
    "randperm": lambda like, is_pinned: torch.randperm(9, pin_memory=is_pinned),
    "rand_like": lambda like, is_pinned: torch.rand_like(like, device="cpu", pin_memory=is_pinned),
    "new_empty": lambda like, is_pinned: torch.ones(2).new_empty((3, 4), pin_memory=is_pinned),
    "new_zeros": lambda like, is_pinned: torch.ones(2).new_zeros((3, 4), pin_memory=is_pinned),
    "new_full": lambda like, is_pinned: torch.ones(2).new_full((3, 4), 1.5, pin_memory=is_pinned),
}
"""Functions with the argument ``pin_memory``, by name. Each is called with a tensor on the device and the value of ``pin_memory``."""
_IS_RANDOM = ("empty", "new_empty", "rand")
"""Prefixes of the names of functions that return random or uninitialised values."""


def check_pinned_tensors(subject: Subject) -> None:
    """Check that ``pin_memory=True`` and ``Tensor.pin_memory`` give pinned tensors on the CPU.

    ``pin_memory=True`` is checked with many factory functions. ``Tensor.pin_memory`` is checked with tensors in several layouts and dtypes.
    It must not pin its argument. If its argument is already pinned, it must not make a copy.

    A failure is recorded in the subject in each of these cases:

    - A returned tensor is not pinned, unless it is empty.
    - A clone of a pinned tensor is pinned, or ``Tensor.pin_memory`` pins its argument.
    - A tensor has a wrong device, dtype, shape or value.
    - ``Tensor.pin_memory`` copies a pinned tensor.
    - A result of ``to("cpu", non_blocking=True)`` of a tensor on torch's accelerator is not pinned.
    - ``is_pinned`` returns False, in this thread or in another, for a view of a pinned tensor or for a tensor made from its NumPy array.
    """
    like = torch.ones(3, 4, device=subject.device)
    for name, make in _PINNED.items():
        with subject.sample(f"{name} with pin_memory=True", {"name": name}):
            made = make(like, True)
            if subject.lacks(str(made.dtype).removeprefix("torch.")):
                continue
            assert made.is_pinned(), f"{name} with pin_memory=True made a tensor that is not pinned"
            assert made.device.type == "cpu", f"{name} with pin_memory=True made a tensor on {made.device}"
            if not name.startswith(_IS_RANDOM):
                right = make(like, False)
                assert not made.clone().is_pinned(), f"a clone of a pinned tensor of {name} is pinned"
                assert (made.dtype, made.shape) == (right.dtype, right.shape), f"{name} with pin_memory=True made a {made.dtype} tensor"
                assert torch.equal(made, right), f"{name} with pin_memory=True made other values"
                there = made.to(subject.device, non_blocking=True).cpu()
                assert torch.equal(there, right), f"{name} with pin_memory=True: a copy on the device has other values"
    for name, tensor in _unpinned():
        with subject.sample(f"pin_memory of {name}", {"name": name}):
            pinned = tensor.pin_memory()
            assert pinned.is_pinned() or not tensor.numel(), f"pin_memory of {name} returned a tensor that is not pinned"
            form, right = ((one.dtype, tuple(one.shape), one.device) for one in (pinned, tensor))
            assert form == right, f"pin_memory of {name} returned {form}, not {right}"
            assert torch.equal(pinned, tensor), f"pin_memory of {name} returned other values"
            again = pinned.pin_memory()
            pinned.zero_()
            assert torch.equal(again, pinned) or not tensor.numel(), f"pin_memory of a pinned tensor ({name}) returned a copy"
            assert not tensor.is_pinned(), f"pin_memory of {name} pinned its argument"
    if is_accelerator(subject) and subject.device_type != "mps":  # torch does not pin these results on MPS
        for dtype in (None, torch.float32, torch.int32):
            with subject.sample(f"to('cpu', {dtype}, non_blocking=True)", {"name": "to"}):
                assert like.to("cpu", dtype, non_blocking=True).is_pinned(), (
                    "to('cpu', non_blocking=True) returned a tensor that is not pinned"
                )
    pinned = torch.arange(24.0).view(4, 6).pin_memory()
    for name, view in _VIEWS.items():
        with subject.sample(f"{name} of a pinned tensor", {"name": name}):
            for place in ("the current device", "another thread"):
                (found,) = run_at(subject, place, subject.device, lambda view=view: [view(pinned).is_pinned()])  # type: ignore[misc]
                assert found, f"{name} of a pinned tensor is not pinned ({place})"


def _unpinned() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors in pageable memory, each with its name."""
    for dtype in DTYPES:
        yield dtype, (torch.arange(12) % 2).to(getattr(torch, dtype)).view(3, 4)
    base = torch.arange(24.0).view(4, 6)
    yield "a transposed tensor", base.t()
    yield "a strided tensor", base[1::2, ::2]
    yield "a slice", base.view(-1)[5:17]
    yield "a number", torch.tensor(3.0)
    yield "an empty tensor", base[:0]


_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a slice": lambda x: x.view(-1)[len(x) :],
    "a row": lambda x: x[1],
    "a column": lambda x: x[:, 2],
    "a block": lambda x: x[1:3, 2:5],
    "a transposed tensor": lambda x: x.t(),
    "every third element": lambda x: x.view(-1)[1::3],
    "set_": lambda x: torch.empty(0).set_(x.untyped_storage(), 3, (5,), (2,)),  # type: ignore[call-overload]
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "detach": lambda x: x.detach(),
}
"""Functions by name. Each takes a matrix with at least 4 rows and 6 columns, and returns a tensor that shares memory with it."""


def _pinned_views(value: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield views of pinned tensors, each with its name. All elements of the pinned tensors equal ``value``."""
    for name, view in _VIEWS.items():
        yield name, view(torch.full((50, 40), value).pin_memory())


def _sources(value: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors whose elements equal ``value``, each with its name. Drivers may copy the smallest of them in a different way."""
    for size in (1, 3, 64, 5000):
        yield f"{size} elements", torch.full((size,), value)
    yield "a number", torch.tensor(value)
    yield "strided", torch.full((200, 2), value)[:, 0]
    yield "transposed", torch.full((20, 10), value).t()
    yield "float64", torch.full((100,), value, dtype=torch.float64)
    yield "int32", torch.full((100,), int(value), dtype=torch.int32)


def check_queued_sources(subject: Subject, memory: str) -> None:
    """Check that a copy with ``non_blocking=True`` to a busy device gets the values that its source had when the copy was requested.

    Right after each copy is requested, the source is overwritten (unless it is pinned) and freed, and new tensors are created that may
    reuse its memory.

    Args:
        subject: The plugin under test, with its device.
        memory: ``pinned`` or ``pageable``.

    Raises:
        AssertionError: If a copy has other values.
        NotSupported: If ``memory`` is ``pinned``, and the device has no pinned memory.
    """
    if memory == "pinned" and not subject.capabilities.can("pinned_memory"):
        raise NotSupported("the device has no pinned memory")
    pin = (lambda one: one.pin_memory()) if memory == "pinned" else (lambda one: one)
    for way in ("to", "copy_", "to another dtype"):
        copies: list[tuple[str, torch.Tensor, float]] = []
        subject.synchronize()
        _keep_busy(subject)
        for number in range(3):
            value = number + 2.0
            for name, source in (
                *((name, pin(one)) for name, one in _sources(value) if not subject.lacks(str(one.dtype).removeprefix("torch."))),
                *(_pinned_views(value) if memory == "pinned" else ()),
            ):
                copies.append((name, _copied(subject, source, way), value))
                if memory == "pageable":
                    source.fill_(99)
                del source
                for size in (1, 3, 64, 100, 200, 400, 2000, 5000):
                    pin(torch.full((size,), 77.0))
        for name, there, value in copies:
            with subject.sample(f"{way}, {name}, {memory}", {"name": name, "way": way}):
                wrong = int((there.cpu().double() != value).sum())
                assert not wrong, f"{wrong} of {there.numel()} elements have values that were written after the call, such as {there.max()}"


def _copied(subject: Subject, source: torch.Tensor, way: str) -> torch.Tensor:
    if way == "copy_":
        return torch.zeros(source.shape, dtype=source.dtype, device=subject.device).copy_(source, non_blocking=True)
    dtype = torch.float32 if way == "to" else torch.int32
    return source.to(subject.device, dtype, non_blocking=True, copy=True)


@functools.cache
def _square(device: torch.device) -> torch.Tensor:
    return torch.ones(512, 512, device=device)


def _keep_busy(subject: Subject) -> None:
    """Queue work that takes a few milliseconds."""
    if subject.capabilities.can("pinned_memory"):
        keep_busy(subject.device)
    else:
        x = _square(subject.device)
        for _ in range(4):
            x = x @ x / 512
