"""Batches: moving any nesting to the device, one batch ahead where the device has streams."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from accelkit.errors import PrepareError
from accelkit.plugin_calls import call, note_plugin, wrong_result
from accelkit.pytree import leaves, map_leaves
from accelkit.runtime.data.loader_state import Epochs
from accelkit.runtime.data.resume import index_sampler, samples_per_batch, starting_at
from accelkit.runtime.data.samplers import Counted
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.overrides import overridden, overrides
from accelkit.specs.strategy import Strategy

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


def _uploaded(batches: Iterator[Any], device: torch.device, accelerator: Accelerator) -> Iterator[Any]:
    """Each batch on the device, by the accelerator's own upload of their tensors."""
    waiting: deque[Any] = deque()

    def tensors() -> Iterator[list[torch.Tensor]]:
        for batch in batches:
            waiting.append(batch)
            yield [leaf for leaf in leaves(batch, _moves_itself) if isinstance(leaf, torch.Tensor)]

    first = list(itertools.islice(ahead := tensors(), 1))  # what a sampler does at the start of an epoch may be a collective
    uploaded = accelerator.upload(itertools.chain(first, ahead), device)
    assert uploaded is not None
    for moved in uploaded:
        arrived = iter(moved)
        yield map_leaves(lambda leaf, arrived=arrived: _moved(leaf, arrived, device), waiting.popleft(), _moves_itself)  # type: ignore[misc]


def _moved(leaf: Any, arrived: Iterator[torch.Tensor], device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        return next(arrived)
    return leaf.to(device) if _moves_itself(leaf) else leaf


_pass_numbers = itertools.count(1)


class PreparedLoader:
    """A DataLoader whose batches arrive on the device. Everything else (``dataset``, ``batch_size``, ...) is the DataLoader's.

    Args:
        loader: The user's, or this process's share of it.
        device: Where batches go; None leaves them.
        accelerator: Whose the device is. Where it has streams, copy on one, one batch ahead, so that copying overlaps with computing; where
            it has a way of its own to upload ahead, by that.
        strategy: Lays out batches that are on the device.
        epochs: Of the user's loader, where that is another.
        first: How many of the user's loader's batches each pass leaves out.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | None,
        *,
        accelerator: Accelerator | None = None,
        strategy: Strategy | None = None,
        epochs: Epochs | None = None,
        first: int = 0,
    ) -> None:
        self.loader, self.device, self.accelerator, self.strategy = loader, device, accelerator, strategy
        self.epochs, self.first = epochs or Epochs(loader), first
        self._step_end = None if accelerator is None else overridden(accelerator, Accelerator, "step_end")

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet: while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Batches that this process gets in an epoch."""
        return max(len(self.loader) - self.first // self.epochs.step, 0)

    @property
    def is_at_end(self) -> bool:
        """Whether the loop is at the last batch of an epoch; not any more after it. A loop over the rest (``skip_batches``) counts too."""
        return self.epochs.is_at_end

    @property
    def epoch(self) -> int:
        """The number of the epoch under way, or between two of the next one."""
        return self.epochs.epoch

    @property
    def total_batch_size(self) -> int | None:
        """Samples in a batch of the whole job; None if the loader does not say."""
        size = batch_size_of(self.epochs.loader)
        is_whole = self.epochs.step == 1 and not self.epochs.is_shared
        return size if size is None or is_whole else size * self.epochs.num_processes

    @property
    def remainder(self) -> int:
        """At the last batch: how many samples of the job's are no repetition, the first ones. -1 if all, if it is not known, and before."""
        if not self.is_at_end:
            return -1
        source = self.epochs.source
        kinds = (source, getattr(source, "batch_sampler", None), getattr(source, "sampler", None), source.dataset)
        known = (kind.remainder for kind in kinds if isinstance(kind, Counted))
        return next(known, -1)

    def set_epoch(self, epoch: int) -> None:
        """Number the next pass. Passes count themselves; this is for a loop that begins in the middle.

        Args:
            epoch: Passed on to ``set_epoch`` of the dataset and of samplers, where they have it, and so is each following one.
        """
        self.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Epoch, number of samples taken in it, and what its order was drawn from. The same on every process."""
        return self.epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass gives the samples that the saved one had still to give, in the same order.

        Of a map-style dataset, samples that were used are not read again, and the number of processes and the batch size may be others.
        Of a stream, they are read and dropped.

        Raises:
            CheckpointError: If it was saved of another loader, or cannot go on with this number of processes or this batch size.
        """
        self.epochs.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        """Each batch is handed out when the next one is under way: that tells the last one, and lets copies overlap with computing."""
        copies = self._copies()
        self.epochs.pass_number = next(_pass_numbers)
        try:
            copy = next(copies, None)
            for following in copies:
                assert copy is not None
                yield self._hand_over(*copy)
                copy = following
            self.epochs.is_at_end = True
            if copy is not None:
                yield self._hand_over(*copy)
        finally:
            self.epochs.is_at_end, self.epochs.pass_number = False, 0
        self.epochs.finish()

    def _begin_pass(self) -> Iterator[Any]:
        """The loader's own iterator: from the beginning, or where a saved pass was."""
        epochs = self.epochs
        skip = epochs.begin(self.first, has_workers=self.loader.persistent_workers and self.loader._iterator is not None)
        has_to_skip = skip > 0 or epochs.is_resumed
        source = self.loader
        if has_to_skip:
            source = starting_at(self.loader, skip, skip // epochs.stride, epochs.order)
        epochs.source = source
        if epochs.is_resumed or epochs.is_iterable:  # a stream's workers draw its order, from a seed that is drawn here
            with epochs.order():
                return iter(source)
        return iter(source)

    def _copies(self) -> Iterator[tuple[Any, torch.Event | None]]:
        """Each batch on the device; with streams, the event that its copy ends with."""
        device, accelerator = self.device, self.accelerator
        batches = self._begin_pass()
        if device is None:
            yield from ((batch, None) for batch in batches)
        elif accelerator is not None and overrides(accelerator, Accelerator, "upload") and not self._is_collective:
            yield from ((batch, None) for batch in _uploaded(batches, device, accelerator))
        elif accelerator is None or not call(accelerator, "capabilities", device).can("streams"):
            yield from ((move(batch, device), None) for batch in batches)
        else:
            side = torch.Stream(device)
            for batch in batches:
                with side:
                    moved = move(batch, device, non_blocking=True)
                yield moved, side.record_event()

    @property
    def _is_collective(self) -> bool:
        """Whether reading is a collective, which belongs into the thread of all others."""
        return bool(getattr(self.loader, "is_collective", False))

    def _hand_over(self, batch: Any, event: torch.Event | None) -> Any:
        """The computing stream waits for this batch's copy, not for the next one's, and its memory is kept until that stream is done."""
        self.epochs.position += self.epochs.stride
        if self._step_end is not None:
            self._step_end()
        if event is not None:
            computing = torch.accelerator.current_stream(self.device)
            computing.wait_event(event)
            for leaf in leaves(batch):
                if isinstance(leaf, torch.Tensor) and leaf.device == self.device:
                    leaf.record_stream(computing)
        return batch if self.strategy is None or self.device is None else laid_out(batch, self.strategy)


def laid_out(batch: T, strategy: Strategy) -> T:
    """A batch on the device, as the strategy wants it.

    Raises:
        BrokenPluginError: If the strategy returns None for one.
    """
    if type(strategy).place_batch is Strategy.place_batch:
        return batch
    try:
        placed = strategy.place_batch(batch)
    except Exception as error:
        note_plugin(error, strategy, "place_batch")
        raise
    if placed is None and batch is not None:
        raise wrong_result(strategy, "place_batch", placed, "the batch")
    return placed


def innermost(loaders: Sequence[PreparedLoader]) -> PreparedLoader | None:
    """The loader whose loop began last and goes on: an evaluation inside a training loop is not the training's end."""
    return max((loader for loader in loaders if loader.epochs.pass_number), key=lambda loader: loader.epochs.pass_number, default=None)


def skip_batches(loader: DataLoader[Any] | PreparedLoader, count: int) -> Any:
    """A loader like this one that begins ``count`` batches later. Of a map-style dataset, skipped samples are not read.

    It is in the same epoch as the loader that it is made from, and counts on for both.
    """
    if not isinstance(loader, PreparedLoader):
        return starting_at(loader, count * (samples_per_batch(loader) or 1), count)
    first = loader.first + count * loader.epochs.step
    later = copy.copy(loader)
    later.first = first
    return later


def batch_size_of(loader: DataLoader[Any]) -> int | None:
    """Samples in a batch; None if neither the loader nor its batch sampler says."""
    if loader.batch_size is not None:
        return loader.batch_size
    _, sampler = index_sampler(loader)
    size = getattr(sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def check_split(loader: DataLoader[Any], num_processes: int) -> None:
    """With ``split_batches`` a loader's batch is the whole job's: each process gets an equal share.

    Raises:
        PrepareError: If the batch size cannot be divided, or nobody says what it is.
    """
    size = batch_size_of(loader)
    if num_processes > 1 and (size is None or size % num_processes):
        said = "of unknown size" if size is None else f"of {size}"
        raise PrepareError(
            f"a batch {said} cannot be split among {num_processes} processes",
            why="split_batches=True divides each batch",
            hint=f"use a batch size that is a multiple of {num_processes}, or split_batches=False",
        )
