"""Loaders that begin later, or read something else, than the one they are made from."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from accelkit.runtime.data.sampling import Order, ShardedBatches, SharedOrder


def reshaped(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A loader like this one, of its class, with other ``dataset``, ``sampler``, ``batch_sampler`` or ``batch_size``.

    A DataLoader lets none of them be set, and a subclass may hold what its constructor does not take: hence a copy, with its own workers.
    """
    made = copy.copy(loader)
    vars(made).update(changes, _iterator=None, _IterableDataset_len_called=None)
    return made


def index_sampler(loader: DataLoader[Any]) -> tuple[str, Any]:
    """The sampler that a map-style loader asks for the next batch, and its attribute: ``sampler`` if ``batch_size`` is None."""
    return ("batch_sampler", loader.batch_sampler) if loader.batch_sampler is not None else ("sampler", loader.sampler)


def starting_at(loader: Any, count: int, step: int = 1, order: Order | None = None) -> Any:
    """A loader like this one without its first ``count`` batches. Of a map-style dataset, skipped samples are not read.

    Args:
        loader: A DataLoader, or one that was divided among processes.
        count: Batches of the loader that was divided.
        step: How many of them the job takes at once.
        order: The context to draw the order in, where the loader has none yet.
    """
    if not isinstance(loader, DataLoader):
        return loader.starting_at(count, step)
    if isinstance(loader.dataset, IterableDataset):
        return LaterBatches(loader, count // step)
    name, sampler = index_sampler(loader)
    if isinstance(sampler, ShardedBatches):
        return reshaped(loader, **{name: sampler.starting_at(count)})
    return reshaped(loader, **{name: _LaterIndices(sampler if order is None else SharedOrder(sampler, order), count)})


class LaterBatches:
    """The batches of a loader from the ``skip``-th on; those before are read and dropped when the iterator is made."""

    def __init__(self, loader: Any, skip: int) -> None:
        self.loader, self.skip = loader, skip

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet: while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return max(len(self.loader) - self.skip, 0)

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self.loader)
        for _ in itertools.islice(batches, self.skip):
            pass
        return batches

    def starting_at(self, count: int, step: int) -> LaterBatches:
        """Without ``count`` more of the batches of the loader that was divided."""
        return LaterBatches(self.loader, self.skip + count // step)


class _LaterIndices(Sampler[Any]):
    """The batches of another sampler from the ``skip``-th on."""

    def __init__(self, batches: Any, skip: int) -> None:
        self.batches, self.skip = batches, skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.batches), self.skip, None)

    def __len__(self) -> int:
        return max(len(self.batches) - self.skip, 0)
