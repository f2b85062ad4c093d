"""Copies of many sizes, many copies one after another, and copies in another thread, on another stream or device, or after an error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.layouts import arranged
from accelkit_conformance.oracle.places import run_at
from accelkit_conformance.oracle.sample_transfer import to_device
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SIZES = (*range(71), *(2**power + change for power in range(7, 23) for change in (-3, -1, 0, 1, 2)))
_NUM_COPIES = 2000


def check_sizes(subject: Subject) -> None:
    """Check copies of every number of bytes in ``_SIZES``.

    Raises:
        AssertionError: If a copy has a wrong byte, or if a byte outside the target of a copy changes.
        NotSupported: If the device lacks uint8.
    """
    subject.needs("uint8")
    values = (torch.arange(_SIZES[-1] + 8, dtype=torch.int32) % 251).to(torch.uint8)
    everything = values.to(subject.device)
    for number, size in enumerate(_SIZES):
        start = number % 4
        with subject.sample(f"{size} bytes", {"size": size}):
            source, there = values[start : start + size], everything[start : start + size]
            assert torch.equal(source.to(subject.device).cpu(), source), f"{size} bytes changed on the way to the device"
            assert torch.equal(there.cpu(), source), f"{size} bytes changed on the way to the host"
            assert torch.equal(there.clone().cpu(), source), f"{size} bytes changed on the device"
            host, target = (
                torch.full((size + 8,), 7, dtype=torch.uint8),
                torch.full((size + 8,), 7, dtype=torch.uint8, device=subject.device),
            )
            host[start : start + size].copy_(there)
            target[start : start + size].copy_(source)
            expected = torch.full((size + 8,), 7, dtype=torch.uint8)
            expected[start : start + size] = source
            assert torch.equal(host, expected), f"a copy of {size} bytes to byte {start} of a tensor on the host is wrong"
            assert torch.equal(target.cpu(), expected), f"a copy of {size} bytes to byte {start} of a tensor on the device is wrong"


def check_rows(subject: Subject) -> None:
    """Copy some rows of a matrix to rows of another matrix on the device, and check all rows of the target. The same two matrices are used
    for all copies. Wrong rows are recorded in the subject."""
    for columns in ((), (4,), (3, 5)):
        here = torch.arange(float(96 * math.prod(columns))).view(96, *columns)
        source, target = here.to(subject.device), torch.zeros_like(here).to(subject.device)
        for first, to, length in itertools.product((0, 1, 32), (0, 1, 32), (16, 32, 1, 63, 16)):
            with subject.sample(f"{length} rows of shape {columns} from row {first} to row {to}", {"shape": columns, "length": length}):
                target.zero_()
                target[to : to + length].copy_(source[first : first + length])
                expected = torch.zeros_like(here)
                expected[to : to + length] = here[first : first + length]
                wrong = int((target.cpu() != expected).flatten(1).any(1).sum()) if columns else int((target.cpu() != expected).sum())
                assert not wrong, f"{wrong} of 96 rows of the target are wrong"


def check_many(subject: Subject) -> None:
    """For each of several functions that write to the device or read from it, make 2,000 small copies and check their values.

    Raises:
        AssertionError: If a copy has wrong values.
    """
    device = subject.device
    ways: dict[str, Callable[[int], torch.Tensor]] = {
        "to the device": lambda number: torch.full((number % 5 + 1,), float(number)).to(device),
        "to the device, not blocking": lambda number: torch.full((number % 5 + 1,), float(number)).to(device, non_blocking=True),
        "copy_": lambda number: torch.zeros(number % 5 + 1, device=device).copy_(torch.full((number % 5 + 1,), float(number))),
        "tensor": lambda number: torch.tensor([float(number)] * (number % 5 + 1), device=device),
        "full": lambda number: torch.full((number % 5 + 1,), float(number), device=device),
        "fill_": lambda number: torch.zeros(number % 5 + 1, device=device).fill_(number),
        "add": lambda number: torch.zeros(number % 5 + 1, device=device) + float(number),
        "to the host": lambda number: torch.full((number % 5 + 1,), float(number), device=device).to("cpu", non_blocking=True),
    }
    expected = torch.cat([torch.full((number % 5 + 1,), float(number)) for number in range(_NUM_COPIES)])
    for name, way in ways.items():
        with subject.sample(name, {"name": name}):
            copies = [way(number) for number in range(_NUM_COPIES)]
            subject.synchronize()
            found = torch.cat(copies).cpu()
            wrong = int((found != expected).sum())
            assert not wrong, f"{name}: {wrong} of {len(expected)} numbers of {_NUM_COPIES} copies are wrong"


def check_copies_elsewhere(subject: Subject, place: str) -> None:
    """Copy tensors in several layouts, and check the device and the values of each copy.

    Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        place: Where or when the copies are made, such as ``another stream`` or ``after an error``. It must be a value that
            ``places.run_at`` accepts.

    Raises:
        NotSupported: If ``place`` requires streams or a second device, but there are none.
    """
    if place == "another stream" and not subject.capabilities.can("streams"):
        raise NotSupported("the device has no streams")
    if place == "another current device" and not subject.capabilities.can("numbered_devices"):
        raise NotSupported("the devices are not numbered")
    other = subject.second_device() if place == "another current device" else subject.device
    device = subject.device
    host = torch.device("cpu")
    ways: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "to the device": lambda here, there: here.to(device),
        "to the device, not blocking": lambda here, there: here.to(device, non_blocking=True),
        "to the device and int32": lambda here, there: here.to(device, torch.int32).float(),
        "to the host": lambda here, there: there.cpu(),
        "to the host and int32": lambda here, there: there.to("cpu", torch.int32).float(),
        "clone": lambda here, there: there.clone(),
        "copy_ to the device": lambda here, there: torch.zeros(here.shape, device=device).copy_(here),
        "copy_ to the host": lambda here, there: torch.zeros(here.shape).copy_(there),
        "copy_ on the device": lambda here, there: torch.zeros(here.shape, device=device).copy_(there),
        "through a list": lambda here, there: torch.tensor(there.tolist(), device=device),
    }
    if len(subject.devices) > 1 and subject.capabilities.can("numbered_devices"):
        ways["to another device and back"] = lambda here, there: there.to(subject.second_device()).to(device)
        ways["copy_ to another device"] = lambda here, there: torch.zeros(here.shape, device=subject.second_device()).copy_(there)
    for layout in ("contiguous", "strided", "offset", "transposed"):
        for size in ((5, 7), (300, 400)):
            values = arranged((torch.arange(float(size[0] * size[1])) % 999).view(size), layout)
            for name, way in ways.items():
                with subject.sample(f"{name}, {layout} {size}", {"name": name, "layout": layout}):
                    there = to_device(values, device)
                    subject.synchronize()

                    def call(
                        way: Callable[..., torch.Tensor] = way, there: torch.Tensor = there, values: torch.Tensor = values
                    ) -> list[Any]:
                        return [way(values, there)]

                    (found,) = run_at(subject, place, other, call)
                    on_host, on_another = name.endswith(("host", "host and int32")), name == "copy_ to another device"
                    right = host if on_host else subject.second_device() if on_another else device
                    assert found.device == right, f"{name}: the copy is on {found.device}"
                    wrong = int((found.cpu() != values).sum())
                    assert not wrong, f"{name}: {wrong} of {values.numel()} elements are wrong"
