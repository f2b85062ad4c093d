"""Loaders that begin later, or read something else, than the one they are made from."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from accelkit.runtime.data.samplers import Order, ShardedBatches, SharedOrder


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


def samples_per_batch(loader: DataLoader[Any]) -> int | None:
    """How many samples of its order each of a loader's batches takes; the last may take fewer.

    None if the batch sampler is the user's own: which samples it puts together may depend on the size of its batches.
    """
    if isinstance(loader.dataset, IterableDataset):
        return loader.batch_size or 1
    name, sampler = index_sampler(loader)
    if type(sampler) is BatchSampler:
        return sampler.batch_size
    return None if name == "batch_sampler" or isinstance(sampler, BatchSampler) else 1


def in_order(sampler: Any, order: Order) -> Any:
    """A sampler like this one, whose order is drawn inside a context. That of torch's ``BatchSampler`` stays one."""
    if type(sampler) is BatchSampler:
        return BatchSampler(SharedOrder(sampler.sampler, order), sampler.batch_size, sampler.drop_last)
    return SharedOrder(sampler, order)


def starting_at(loader: Any, position: int, num_batches: int, order: Order | None = None) -> Any:
    """A loader like this one that begins later. Of a map-style dataset, skipped samples are not read.

    Args:
        loader: A DataLoader, or one that was divided among processes.
        position: Samples to leave out, of the whole job's; batches, if ``samples_per_batch`` is None. Of a map-style dataset.
        num_batches: Batches to leave out, of this process's. Of a stream.
        order: The context to draw the order in, where the loader has none yet.
    """
    if not isinstance(loader, DataLoader):
        return loader.starting_at(position, num_batches)
    if isinstance(loader.dataset, IterableDataset):
        return LaterBatches(loader, num_batches)
    name, sampler = index_sampler(loader)
    if isinstance(sampler, ShardedBatches):
        return reshaped(loader, **{name: sampler.starting_at(position)})
    batches = sampler if order is None else in_order(sampler, order)
    if type(batches) is BatchSampler:
        later = BatchSampler(_LaterIndices(batches.sampler, position), batches.batch_size, batches.drop_last)
        return reshaped(loader, **{name: later})
    return reshaped(loader, **{name: _LaterIndices(batches, position)})


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

    def starting_at(self, position: int, num_batches: int) -> LaterBatches:
        """Without ``num_batches`` more."""
        return LaterBatches(self.loader, self.skip + num_batches)


class _LaterIndices(Sampler[Any]):
    """The items of another sampler, samples or batches, from the ``skip``-th on."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self.sampler, self.skip = sampler, skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.sampler), self.skip, None)

    def __len__(self) -> int:
        return max(len(self.sampler) - self.skip, 0)
