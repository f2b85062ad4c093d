"""Checks of storages and of resized tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.queued_copies import keep_busy
from accelkit_conformance.oracle.sample_transfer import has_memory
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def check_storages(subject: Subject) -> None:
    """Check functions that create, fill, copy or resize storages, also with ``non_blocking=True``, and functions that resize tensors.

    Wrong results and errors are recorded in the subject. A function that raises NotImplementedError is skipped.

    Raises:
        NotSupported: If tensors of the device have no storage with an address.
    """
    if not has_memory(torch.ones(12, device=subject.device)):
        raise NotSupported("tensors of the device have no storage with an address")
    for name, (call, expected) in {**_resized(subject.device), **_copied(subject.device), **_queued(subject)}.items():
        with subject.sample(name, {"name": name}):
            try:
                found = call()
            except NotImplementedError:
                continue
            assert found == expected, f"{name}: {found}, not {expected}"


_Cases = dict[str, tuple[Callable[[], Any], Any]]
_NUMBERS = torch.arange(1.0, 13.0)


def _fresh(device: torch.device) -> torch.Tensor:
    return _NUMBERS.to(device, copy=True)


def _resized(device: torch.device) -> _Cases:
    """Return a dict of functions that resize a tensor or a storage.

    The keys are the names of the cases. Each value is a pair of a function and the result that it must return.
    """

    def grown_storage() -> Any:
        x = _fresh(device)
        x.untyped_storage().resize_(4096)
        return x.tolist() + torch.empty(0, device=device).set_(x.untyped_storage()).tolist()[:12]  # type: ignore[call-overload]

    def freed_storage() -> Any:
        x = _fresh(device)
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(48)
        return [x.untyped_storage().device == device, *x.copy_(_NUMBERS).tolist()]

    def shrunk_storage() -> Any:
        x = _fresh(device)
        x.untyped_storage().resize_(16)
        return [x.untyped_storage().nbytes(), *x[:4].tolist()]

    def grown_tensor() -> Any:
        x = _fresh(device)
        x.resize_(100)
        return [*x[:12].tolist(), *x.shape, x.untyped_storage().nbytes()]

    def shrunk_tensor() -> Any:
        x = _fresh(device)
        view = x[2:]
        x.resize_(2, 3)
        view.fill_(7)
        return x.tolist()

    def resized_view() -> Any:
        x = _fresh(device)
        x[4:8].resize_(2, 2).fill_(0)
        return x.tolist()

    def resized_as() -> Any:
        x = _fresh(device)
        return x.resize_as_(torch.zeros(3, 2, device=device)).tolist()

    return {
        "a storage that grows": (grown_storage, _NUMBERS.tolist() * 2),
        "a storage that is freed and grows": (freed_storage, [True, *_NUMBERS.tolist()]),
        "a storage that shrinks": (shrunk_storage, [16, 1.0, 2.0, 3.0, 4.0]),
        "a tensor that grows": (grown_tensor, [*_NUMBERS.tolist(), 100, 400]),
        "a tensor that shrinks": (shrunk_tensor, [[1.0, 2.0, 7.0], [7.0] * 3]),
        "a slice that is resized": (resized_view, [*range(1, 5), 0, 0, 0, 0, *range(9, 13)]),
        "resize_as_": (resized_as, _NUMBERS[:6].view(3, 2).tolist()),
    }


def _copied(device: torch.device) -> _Cases:
    """Return a dict of functions that write, copy or create storages.

    The keys are the names of the cases. Each value is a pair of a function and the result that it must return.
    """

    def filled_storage() -> Any:
        x = _fresh(device)
        x.untyped_storage().fill_(0)
        return x.tolist()

    def copied_storage() -> Any:
        x, y = _fresh(device), torch.zeros(12, device=device)
        y.untyped_storage().copy_(x.untyped_storage())
        return y.tolist()

    def storage_from_host() -> Any:
        y = torch.zeros(12, device=device)
        y.untyped_storage().copy_(_NUMBERS.untyped_storage())
        return y.tolist()

    def storage_to_host() -> Any:
        storage = _fresh(device).untyped_storage().cpu()
        return [storage.device.type, *torch.empty(0).set_(storage).tolist()]  # type: ignore[call-overload]

    def cloned_storage() -> Any:
        x = _fresh(device)
        copied = x.untyped_storage().clone()
        x.zero_()
        return [copied.device == device, *torch.empty(0, device=device).set_(copied).tolist()]  # type: ignore[call-overload]

    def new_storage() -> Any:
        storage = torch.UntypedStorage(64, device=device)
        y = torch.empty(0, device=device).set_(storage, 4, (3, 4), (4, 1)).fill_(3)  # type: ignore[call-overload]
        return [storage.nbytes(), storage.device == device, *y.flatten().tolist()]

    def set_to_another() -> Any:
        x, y = _fresh(device), torch.zeros(3, device=device)
        y.set_(x[3:9].view(2, 3))
        y[0, 0] = -1
        return [*x.tolist(), *y.stride(), y.storage_offset()]

    return {
        "fill_ of a storage": (filled_storage, [0.0] * 12),
        "copy_ of a storage": (copied_storage, _NUMBERS.tolist()),
        "copy_ of a storage of the CPU": (storage_from_host, _NUMBERS.tolist()),
        "cpu of a storage": (storage_to_host, ["cpu", *_NUMBERS.tolist()]),
        "clone of a storage": (cloned_storage, [True, *_NUMBERS.tolist()]),
        "a new storage": (new_storage, [64, True, *[3.0] * 12]),
        "set_": (set_to_another, [1.0, 2.0, 3.0, -1.0, *_NUMBERS[4:].tolist(), 3, 1, 3]),
    }


def _queued(subject: Subject) -> _Cases:
    """Return a dict of functions that copy storages with ``non_blocking=True``, and wait for the device before they read the copies.

    The keys are the names of the cases. Each value is a pair of a function and the result that it must return. With pinned memory, other
    copies keep the device busy. Whether a new storage on the CPU is pinned is not compared, because torch does not define it.
    """
    device, cpu = subject.device, torch.device("cpu")
    has_pinned_memory = subject.capabilities.can("pinned_memory")

    def values(storage: torch.UntypedStorage) -> list[float]:
        subject.synchronize()
        return torch.empty(0, device=storage.device).set_(storage).tolist()  # type: ignore[call-overload, no-any-return]

    def copied(source: torch.Tensor, target: torch.Tensor) -> Any:
        subject.synchronize()
        if has_pinned_memory:
            keep_busy(device, 1)
        return values(target.untyped_storage().copy_(source.untyped_storage(), non_blocking=True))

    def to_host() -> Any:
        storage = _fresh(device).untyped_storage()
        keep_busy(device, 1)
        found = storage.to(device="cpu", non_blocking=True)
        return [found.device.type, *values(found)]

    def to_device() -> Any:
        storage = _fresh(cpu).pin_memory().untyped_storage()
        keep_busy(device, 1)
        found = storage.to(device=device, non_blocking=True)
        del storage
        later = torch.zeros(12).pin_memory()  # must not get the memory of the source before it has been read
        return [found.device == device, *values(found), *later.tolist()]

    cases: _Cases = {
        "copy_ of a storage to the CPU without waiting": (lambda: copied(_fresh(device), torch.zeros(12)), _NUMBERS.tolist()),
        "copy_ of a storage of the CPU without waiting": (lambda: copied(_fresh(cpu), torch.zeros(12, device=device)), _NUMBERS.tolist()),
        "copy_ of a storage without waiting": (lambda: copied(_fresh(device), torch.zeros(12, device=device)), _NUMBERS.tolist()),
    }
    if not has_pinned_memory:
        return cases
    cases |= {
        "copy_ of a storage to pinned memory": (lambda: copied(_fresh(device), torch.zeros(12).pin_memory()), _NUMBERS.tolist()),
        "copy_ of a storage in pinned memory": (
            lambda: copied(_fresh(cpu).pin_memory(), torch.zeros(12, device=device)),
            _NUMBERS.tolist(),
        ),
        "to of a storage to the CPU": (to_host, ["cpu", *_NUMBERS.tolist()]),
    }
    if subject.optional_function("device") is not None:  # torch calls this function to make the device current
        cases["to of a storage in pinned memory"] = (to_device, [True, *_NUMBERS.tolist(), *[0.0] * 12])
    return cases
