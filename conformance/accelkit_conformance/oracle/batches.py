"""Batches of several types, which DataLoaders pin. Worker processes send them to the main process, so the types must be importable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

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
"""Batches, each with a function that makes it from a tensor, and a function that returns its tensors."""


def check_pinned_batches(subject: Subject) -> None:
    """Check that a DataLoader pins the tensors of batches of every type, in the main process and in the thread that reads from a worker.

    Raises:
        AssertionError: If a tensor is not pinned, or if a tensor or its copy on the device has wrong values.
    """
    expected = torch.arange(8.0)

    def make(chosen: list[str]) -> Any:
        return _BATCHES[chosen[0]][0](expected)

    for workers in (0, 1):
        options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
        names = list(_BATCHES)
        loader: Any = DataLoader(names, batch_size=1, collate_fn=make, pin_memory=True, **options)
        for name, batch in zip(names, loader, strict=True):
            for tensor in _BATCHES[name][1](batch):
                doing = f"{name}, with {workers} workers"
                assert tensor.is_pinned(), f"{doing}: a tensor is not pinned"
                assert torch.equal(tensor, expected), f"{doing}: a pinned tensor has the values {tensor.tolist()}"
                found = tensor.to(subject.device, non_blocking=True)
                subject.assert_on_device(found)
                assert torch.equal(found.cpu(), expected), f"{doing}: a copy on the device has the values {found.tolist()}"
