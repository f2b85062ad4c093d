"""Copies of a loader that start at a later sample or batch, or read from another dataset or sampler."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from accelkit.runtime.data.samplers import Order, ShardedBatches, SharedOrder


def reshaped(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a copy of a loader with another ``dataset``, ``sampler``, ``batch_sampler`` or ``batch_size``.

    An existing DataLoader does not allow setting any of these attributes. The loader is copied, not constructed anew, because a subclass
    may hold attributes that its constructor does not take. The copy is of the same class and has its own workers.
    """
    made = copy.copy(loader)
    vars(made).update(changes, _iterator=None, _IterableDataset_len_called=None)
    return made


def index_sampler(loader: DataLoader[Any]) -> tuple[str, Any]:
    """Return the name and the value of the loader's attribute that yields the indices of a map-style dataset.

    Returns:
        ``("batch_sampler", loader.batch_sampler)``, or ``("sampler", loader.sampler)`` for a loader with ``batch_size=None``.
    """
    return ("batch_sampler", loader.batch_sampler) if loader.batch_sampler is not None else ("sampler", loader.sampler)


def dataset_and_samplers(loader: DataLoader[Any]) -> list[Any]:
    """Return the dataset and the samplers of a loader, each once."""
    batches = loader.batch_sampler
    parts = [loader.dataset, loader.sampler, batches, getattr(batches, "sampler", None)]
    return list({id(part): part for part in parts if part is not None}.values())


def samples_per_batch(loader: DataLoader[Any]) -> int | None:
    """Return the number of samples in each batch of a loader. The last batch may have fewer.

    The result is 1 if the loader does not batch samples. It is None if the dataset is map-style and the batch sampler is not torch's own
    ``BatchSampler``, because such a sampler's batches may differ in size.
    """
    if isinstance(loader.dataset, IterableDataset):
        return loader.batch_size or 1
    name, sampler = index_sampler(loader)
    if type(sampler) is BatchSampler:
        return sampler.batch_size
    return None if name == "batch_sampler" or isinstance(sampler, BatchSampler) else 1


def in_order(sampler: Any, order: Order) -> Any:
    """Return ``sampler`` wrapped so that its order is drawn inside the context that ``order()`` returns.

    For torch's own ``BatchSampler``, the result is a ``BatchSampler`` too.
    """
    if type(sampler) is BatchSampler:
        return BatchSampler(SharedOrder(sampler.sampler, order), sampler.batch_size, sampler.drop_last)
    return SharedOrder(sampler, order)


def starting_at(loader: Any, position: int, num_batches: int, order: Order | None = None) -> Any:
    """Return a copy of a loader. The copy skips the first samples or batches. For a map-style dataset, skipped samples are not read.

    Args:
        loader: A DataLoader, or a loader that was divided among processes.
        position: For a map-style dataset, the number of samples that all processes together skip, or the number of batches if
            ``samples_per_batch(loader)`` is None.
        num_batches: For an iterable-style dataset, the number of this process's batches to skip.
        order: A function that returns a context manager. The sampler draws the order of the samples inside this context, as in
            ``in_order``. None if no context is needed or the caller has entered it.
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
    """A loader that wraps another loader and skips its first ``skip`` batches. They are read and dropped when the iterator is created."""

    def __init__(self, loader: Any, skip: int) -> None:
        self.loader, self.skip = loader, skip

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet while unpickling
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
        """Return a loader that skips ``num_batches`` more batches. ``position`` is ignored."""
        return LaterBatches(self.loader, self.skip + num_batches)


class _LaterIndices(Sampler[Any]):
    """A sampler that yields the items of another sampler (indices, or lists of indices) without the first ``skip`` items."""

    def __init__(self, sampler: Any, skip: int) -> None:
        self.sampler, self.skip = sampler, skip

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.sampler), self.skip, None)

    def __len__(self) -> int:
        return max(len(self.sampler) - self.skip, 0)
