"""Prepared loaders. They yield batches on the device. If the device has streams, copies overlap with computation."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from accelkit.plugin_calls import call, note_plugin, wrong_result
from accelkit.pytree import tree_leaves
from accelkit.runtime.data.device_transfer import move, uploaded
from accelkit.runtime.data.division import Division
from accelkit.runtime.data.loader_state import Epochs
from accelkit.runtime.data.resume import index_sampler, samples_per_batch, starting_at
from accelkit.runtime.data.samplers import Sharded
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.overrides import overridden, overrides
from accelkit.specs.strategy import Strategy

T = TypeVar("T")


_pass_numbers = itertools.count(1)


class PreparedLoader:
    """Loader that yields a DataLoader's batches on the device and gives access to the DataLoader's attributes (``dataset``, ...).

    Args:
        loader: The user's loader, or this process's share of it.
        device: The device to which batches are moved. None leaves them where they are.
        accelerator: The accelerator that owns the device. If the accelerator overrides ``upload``, that method copies the batches,
            unless rank 0 reads the data for all processes. If ``upload`` does not copy the batches and the device has streams, each batch
            is copied on a separate stream while the program computes with the previous batch.
        strategy: The strategy that lays out batches on the device.
        epochs: The object that tracks the epochs of the user's loader. Must be given if ``loader`` is only this process's share.
        first: The number of batches of the user's loader that each pass skips.

    Attributes:
        was_length_read: Whether the program has called ``len`` on this loader.
    """

    was_length_read = False

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
        self.epochs, self.first = epochs or Epochs(Division(loader)), first
        self._step_end = None if accelerator is None else overridden(accelerator, Accelerator, "step_end")

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Return the number of batches that this process gets in an epoch, without those that ``skip_batches`` skips.

        Raises:
            TypeError: If the loader has no known length.
        """
        self.was_length_read = True
        return self.num_batches()

    def num_batches(self) -> int:
        """Like ``len``, but for accelkit's own use: it does not set ``was_length_read``."""
        return max(len(self.loader) - self.first // self.epochs.division.step, 0)

    @property
    def is_at_end(self) -> bool:
        """Whether a loop over this loader is at the last batch of an epoch. False again after the loop.

        A loop over a loader that ``skip_batches`` made from this loader counts as well.
        """
        return self.epochs.active.is_at_end

    @property
    def epoch(self) -> int:
        """The number of the current epoch, counted from 0. After a completed pass, the number of the next epoch.

        After a pass that was interrupted, for example by ``break``, this is the number of the interrupted pass until the next pass begins.
        """
        return self.epochs.epoch

    @property
    def total_batch_size(self) -> int | None:
        """The number of samples in a global batch (one batch of each process). None if the loader does not specify a batch size."""
        division = self.epochs.division
        size = batch_size_of(division.loader)
        is_whole = division.step == 1 and not division.is_shared
        return size if size is None or is_whole else size * division.num_processes

    @property
    def remainder(self) -> int:
        """The number of samples in the last global batch, not counting the repeated samples at its end that fill the batch.

        -1 if no samples are repeated, the number is not known, or the loop is not at the last batch.
        """
        if not self.is_at_end:
            return -1
        source = self.epochs.active.source
        kinds = (source, getattr(source, "batch_sampler", None), getattr(source, "sampler", None), source.dataset)
        known = (kind.remainder for kind in kinds if isinstance(kind, Sharded))
        return next(known, -1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. Epochs are counted automatically; call this if a loop starts at a later epoch.

        If ``load_state_dict`` has restored an unfinished pass and ``epoch`` is the saved epoch, the next pass continues the restored pass.
        Otherwise, the next pass starts from the beginning.

        Args:
            epoch: The number of the epoch. The dataset and the samplers that have ``set_epoch`` are given this number, and later the
                number of each following epoch.
        """
        self.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for ``load_state_dict``.

        The state contains the epoch, how many of its samples the job has used, the generator states from which the order of the samples was
        drawn, and the settings with which the job divides the loader. The state is the same on every process, unless the argument
        ``rng_types`` of the Runtime lacks ``generator``.
        """
        return self.epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass yield the remaining samples of the saved pass, in the same order.

        If no pass was active when the state was saved, the next pass begins the saved epoch.

        For a map-style dataset, samples that were already used are not read again. The pass can usually continue even if the number of
        processes or the batch size has changed. For an iterable-style dataset, used samples are read and dropped.

        Raises:
            CheckpointError: If the state belongs to another loader, or the pass cannot continue with this number of processes or this
                batch size.
        """
        self.epochs.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of one pass.

        Before a batch is yielded, the next batch is read, and its copy to the device begins. Copies can therefore overlap with
        computation, and ``is_at_end`` is known when the last batch is yielded.
        """
        copies = self._copies()
        self.epochs.active.number = next(_pass_numbers)
        try:
            copy = next(copies, None)
            for following in copies:
                assert copy is not None
                yield self._hand_over(*copy)
                copy = following
            self.epochs.active.is_at_end = True
            if copy is not None:
                yield self._hand_over(*copy)
        finally:
            self.epochs.active.is_at_end, self.epochs.active.number = False, 0
        self.epochs.finish()

    def _begin_pass(self) -> Iterator[Any]:
        """Return the loader's iterator, starting from the beginning or where a saved pass stopped."""
        epochs = self.epochs
        skip = epochs.begin(self.first, has_workers=self.loader.persistent_workers and self.loader._iterator is not None)
        has_to_skip = skip > 0 or epochs.is_resumed
        source = self.loader
        if has_to_skip:
            source = starting_at(self.loader, skip, skip // epochs.division.stride, epochs.order)
        epochs.active.source = source
        if epochs.is_resumed or epochs.division.is_stream:  # a stream's workers draw its order from a seed that is drawn here
            with epochs.order():
                return iter(source)
        return iter(source)

    def _copies(self) -> Iterator[tuple[Any, torch.Event | None]]:
        """Yield each batch on the device and, if streams are used, the event that marks the end of its copy."""
        device, accelerator = self.device, self.accelerator
        batches = self._begin_pass()
        if device is None:
            yield from ((batch, None) for batch in batches)
        elif accelerator is not None and overrides(accelerator, Accelerator, "upload") and not self._is_collective:
            yield from ((batch, None) for batch in uploaded(batches, device, accelerator))
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
        """Whether reading the loader is a collective, which must run in the same thread as all other collectives."""
        return bool(getattr(self.loader, "is_collective", False))

    def _hand_over(self, batch: Any, event: torch.Event | None) -> Any:
        """Count a batch, call the accelerator's ``step_end``, and return the batch as the strategy places it.

        The compute stream waits for the copy of this batch, but not for the copy of the next batch. The memory of this batch is kept
        until the compute stream has used it.
        """
        self.epochs.position += self.epochs.division.stride
        if self._step_end is not None:
            self._step_end()
        if event is not None:
            computing = torch.accelerator.current_stream(self.device)
            computing.wait_event(event)
            for leaf in tree_leaves(batch):
                if isinstance(leaf, torch.Tensor) and leaf.device == self.device:
                    leaf.record_stream(computing)
        return batch if self.strategy is None else laid_out(batch, self.strategy)


def laid_out(batch: T, strategy: Strategy) -> T:
    """Return the result of the strategy's ``place_batch`` for a batch that is already on the device.

    Raises:
        BrokenPluginError: If the strategy returns None instead of a batch.
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
    """Return the loader whose loop began last, among the loops that are still running. None if no loop is running.

    During an evaluation inside a training loop, this is the evaluation loader.
    """
    found, highest = None, 0
    for loader in loaders:
        if (number := loader.epochs.active.number) > highest:
            found, highest = loader, number
    return found


def skip_batches(loader: DataLoader[Any] | PreparedLoader, count: int) -> Any:
    """Return a loader like ``loader`` that begins ``count`` batches later. For a map-style dataset, skipped samples are not read.

    If the loader is prepared, the new loader is in the same epoch, and both loaders share one count of epochs.
    """
    if not isinstance(loader, PreparedLoader):
        return starting_at(loader, count * (samples_per_batch(loader) or 1), count)
    first = loader.first + count * loader.epochs.division.step
    later = copy.copy(loader)
    later.first = first
    return later


def batch_size_of(loader: DataLoader[Any]) -> int | None:
    """Return the number of samples in a batch. None if neither the loader nor its batch sampler specifies it."""
    size = loader.batch_size if loader.batch_size is not None else getattr(index_sampler(loader)[1], "batch_size", None)
    return size if isinstance(size, int) else None
