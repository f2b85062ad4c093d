"""Batches: moving any nesting to the device, one batch ahead where the device has streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from accelkit.errors import PrepareError
from accelkit.nested import leaves, map_leaves

T = TypeVar("T")


def move(data: T, device: torch.device, non_blocking: bool = False) -> T:
    """``data`` with every tensor, and every other object with a ``to`` method, on ``device``."""

    def move_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if _moves_itself(leaf) else leaf

    return map_leaves(move_leaf, data, _moves_itself)


def _moves_itself(thing: Any) -> bool:
    """A tensor, a packed sequence, a tokenizer's encoding: a class may have a ``to`` too, but is no data."""
    return callable(getattr(thing, "to", None)) and not isinstance(thing, type)


class PreparedLoader:
    """A DataLoader whose batches arrive on the device. Everything else (``dataset``, ``batch_size``, ...) is the DataLoader's.

    Args:
        loader: The user's.
        device: Where batches go; None leaves them.
        has_streams: Copy on a side stream, one batch ahead, so that copying overlaps with computing.

    Attributes:
        is_at_end: Whether the loop is at the last batch of an epoch; not any more when the loop is over.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device | None, *, has_streams: bool = False) -> None:
        self.loader, self.device, self.has_streams = loader, device, has_streams
        self.is_at_end = False

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet: while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Each batch is handed out when the next one is under way: that tells the last one, and lets copies overlap with computing."""
        copies = self._copies()
        try:
            copy = next(copies)
        except StopIteration:
            return
        for following in copies:
            yield self._hand_over(*copy)
            copy = following
        self.is_at_end = True
        try:
            yield self._hand_over(*copy)
        finally:
            self.is_at_end = False

    def _copies(self) -> Iterator[tuple[Any, torch.Event | None]]:
        """Each batch on the device; with streams, the event that its copy ends with."""
        side = torch.Stream(self.device) if self.has_streams and self.device is not None else None
        for batch in self.loader:
            if self.device is None:
                yield batch, None
            elif side is None:
                yield move(batch, self.device), None
            else:
                with side:
                    moved = move(batch, self.device, non_blocking=True)
                yield moved, side.record_event()

    def _hand_over(self, batch: Any, event: torch.Event | None) -> Any:
        """The computing stream waits for this batch's copy, not for the next one's, and its memory is kept until that stream is done."""
        if event is not None:
            computing = torch.accelerator.current_stream(self.device)
            computing.wait_event(event)
            for leaf in leaves(batch):
                if isinstance(leaf, torch.Tensor) and leaf.device == self.device:
                    leaf.record_stream(computing)
        return batch


class _SkippingSampler(Sampler[list[int]]):
    """The batches of another sampler from the ``skip``-th on."""

    def __init__(self, batches: Any, skip: int) -> None:
        self.batches, self.skip = batches, skip

    def __iter__(self) -> Iterator[list[int]]:
        for index, batch in enumerate(self.batches):
            if index >= self.skip:
                yield batch

    def __len__(self) -> int:
        return max(len(self.batches) - self.skip, 0)


class _SkippingLoader:
    """The batches of an iterable dataset's loader from the ``skip``-th on; those before are read and dropped."""

    def __init__(self, loader: DataLoader[Any], skip: int) -> None:
        self.loader, self.skip = loader, skip

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return max(len(self.loader) - self.skip, 0)

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self.loader):
            if index >= self.skip:
                yield batch


def skip_batches(loader: DataLoader[Any] | PreparedLoader, count: int) -> Any:
    """A loader like this one that begins ``count`` batches later. Of a map-style dataset, skipped samples are not read."""
    if isinstance(loader, PreparedLoader):
        return PreparedLoader(skip_batches(loader.loader, count), loader.device, has_streams=loader.has_streams)
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return _SkippingLoader(loader, count)
    return DataLoader(
        loader.dataset,
        batch_sampler=_SkippingSampler(loader.batch_sampler, count),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def check_split(loader: DataLoader[Any], num_processes: int) -> None:
    """With ``split_batches`` a loader's batch is the whole job's: each process gets an equal share.

    Raises:
        PrepareError: If the batch size cannot be divided.
    """
    size = loader.batch_size
    if size is None and isinstance(loader.batch_sampler, BatchSampler):
        size = loader.batch_sampler.batch_size
    if size is not None and size % num_processes:
        raise PrepareError(
            f"a batch of {size} cannot be split among {num_processes} processes",
            why="split_batches=True divides each batch",
            hint=f"use a batch size that is a multiple of {num_processes}, or split_batches=False",
        )
