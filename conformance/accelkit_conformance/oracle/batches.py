"""Checks of DataLoaders with pinned batches and with datasets on the device. Worker processes send batches to the main process, so the
types of batches must be importable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset, TensorDataset, random_split

from accelkit_conformance.oracle.queued_copies import keep_busy

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


class _Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class _Object:
    """A batch of a type that torch does not know."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def pin_memory(self) -> _Object:
        return _Object(self.values.pin_memory())


_BATCHES: Mapping[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], Sequence[torch.Tensor]]]] = {
    "a tensor": (lambda x: x, lambda batch: [batch]),
    "a dict": (lambda x: {"a": x, "b": {"c": x, "d": "text"}}, lambda batch: [batch["a"], batch["b"]["c"]]),
    "a list": (lambda x: [x, (x, 3)], lambda batch: [batch[0], batch[1][0]]),
    "a tuple": (lambda x: (x, [x]), lambda batch: [batch[0], batch[1][0]]),
    "a named tuple": (lambda x: _Pair(x, x), lambda batch: [batch.first, batch.second]),
    "a PackedSequence": (lambda x: pack_sequence([x]), lambda batch: [batch.data]),
    "an object with pin_memory": (_Object, lambda batch: [batch.values]),
    "objects with pin_memory": (lambda x: {"a": [_Object(x)]}, lambda batch: [batch["a"][0].values]),
}
"""Kinds of batches, by name: a function that makes the batch from a tensor, and a function that returns the tensors of the batch."""


def _pinning_loaders(dataset: Any, **options: Any) -> Iterator[tuple[int, Any]]:
    """Yield two pairs (number of workers, loader). Both loaders pin their batches, and the second has a forked worker process."""
    yield 0, DataLoader(dataset, pin_memory=True, **options)
    yield 1, DataLoader(dataset, pin_memory=True, num_workers=1, multiprocessing_context="fork", **options)


def check_pinned_batches(subject: Subject) -> None:
    """Check that a DataLoader pins the tensors of each kind of batch in ``_BATCHES``, both without workers and with a worker process.

    Raises:
        AssertionError: If a tensor is not pinned, if its copy is not on the device, or if the tensor or its copy has wrong values.
    """
    expected = torch.arange(8.0)

    def make(chosen: list[str]) -> Any:
        return _BATCHES[chosen[0]][0](expected)

    names = list(_BATCHES)
    for workers, loader in _pinning_loaders(names, batch_size=1, collate_fn=make):
        for name, batch in zip(names, loader, strict=True):
            for tensor in _BATCHES[name][1](batch):
                doing = f"{name}, with {workers} workers"
                assert tensor.is_pinned(), f"{doing}: a tensor is not pinned"
                assert torch.equal(tensor, expected), f"{doing}: a pinned tensor has the values {tensor.tolist()}"
                found = tensor.to(subject.device, non_blocking=True)
                subject.assert_on_device(found)
                assert torch.equal(found.cpu(), expected), f"{doing}: a copy on the device has the values {found.tolist()}"


def check_datasets_on_the_device(subject: Subject) -> None:
    """Check loaders of datasets whose tensors are on the device.

    Raises:
        AssertionError: If a sample is missing, delivered twice, in the wrong order or not on the device.
    """
    values = torch.arange(23, device=subject.device)
    whole: Any = TensorDataset(values, values.float() * 2)
    dicts: Any = [{"x": values[index], "y": values[index].float() * 2} for index in range(23)]
    split: Any = ConcatDataset(random_split(whole, [10, 13], generator=torch.Generator().manual_seed(1)))
    sampler = BatchSampler(RandomSampler(range(23)), batch_size=5, drop_last=False)
    loaders: dict[str, Any] = {
        "in order": DataLoader(whole, batch_size=5),
        "shuffled": DataLoader(whole, batch_size=5, shuffle=True),
        "dicts": DataLoader(dicts, batch_size=5, shuffle=True),
        "a subset": DataLoader(Subset(whole, range(22, -1, -1)), batch_size=5),
        "a split": DataLoader(split, batch_size=5),
        "a batch sampler": DataLoader(whole, batch_sampler=sampler),
        "single samples": DataLoader(whole, batch_size=None),
    }
    for name, loader in loaders.items():
        with subject.sample(name, {"name": name}):
            found: list[int] = []
            for batch in loader:
                x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
                subject.assert_on_device(x, y)
                assert torch.equal(y.cpu(), x.cpu().float() * 2), f"{name}: the two tensors of a batch have different samples"
                found += x.reshape(-1).tolist()
            assert sorted(found) == list(range(23)), f"{name}: the batches have {found}"
            assert (found == list(range(23))) == (name in ("in order", "single samples")), f"{name}: the samples have the order {found}"


def check_stream_of_batches(subject: Subject) -> None:
    """Check that asynchronous copies of pinned batches to a busy device have the right values.

    Each batch is freed as soon as its copy is queued, so later batches may reuse its pinned memory.

    Raises:
        AssertionError: If a copy has wrong values.
    """
    rows: Any = TensorDataset(torch.arange(60.0).view(60, 1).expand(60, 3000).contiguous())
    for workers, loader in _pinning_loaders(rows, batch_size=4):
        copies: list[torch.Tensor] = []
        for (batch,) in loader:
            if len(copies) < 2:
                keep_busy(subject.device)
            copies.append(batch.to(subject.device, non_blocking=True))
            del batch
        for number, there in enumerate(copies):
            expected = torch.arange(number * 4.0, number * 4 + 4).view(-1, 1).expand(there.shape)
            assert torch.equal(there.cpu(), expected), f"batch {number}, with {workers} workers, has different values on the device"


def check_kept_batches(subject: Subject) -> None:
    """Check that later batches of a pass over a loader do not overwrite pinned batches that the program has kept.

    Raises:
        AssertionError: If the values of a batch, or of its copy on the device, have changed when the pass ends.
    """
    samples = torch.arange(320.0).view(80, 4)
    for workers, loader in _pinning_loaders(samples, batch_size=2):
        kept = [(batch, batch.to(subject.device, non_blocking=True)) for batch in loader]
        for index, (batch, copy) in enumerate(kept):
            expected = samples[2 * index : 2 * index + 2]
            assert torch.equal(batch, expected), f"batch {index}, with {workers} workers, has changed to {batch.tolist()}"
            assert torch.equal(copy.cpu(), expected), f"the copy of batch {index}, with {workers} workers, has the values {copy.tolist()}"
