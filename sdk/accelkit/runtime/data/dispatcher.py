"""Dispatch batches: rank 0 reads the data for all processes and sends each process its share."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from accelkit.errors import CollectiveError
from accelkit.pytree import tree_map
from accelkit.runtime.collectives import call_log, object_collectives
from accelkit.runtime.collectives.fingerprint import watching
from accelkit.runtime.data.rebatching import rounds
from accelkit.runtime.data.resume import index_sampler, starting_at
from accelkit.runtime.data.samplers import Sharded


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """Placeholder for a tensor that is sent separately. Pickling the tensor would copy it twice."""

    shape: torch.Size
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True, slots=True)
class _Message:
    """Message that rank 0 sends to another rank in each round.

    In each round, each process gets one batch, which is called its share. The last round may be incomplete: some processes then get no
    share.

    Attributes:
        share: The share of the receiving rank as a one-element tuple, with tensors replaced by slots. Empty if the rank gets no share.
        remainder: The number of samples in the round, not counting the repeated samples that fill the round. As in
            ``DispatchedBatches``, -1 if no samples are repeated or the number is not known.
        is_over: Whether this is the last round.
        error: The reason why rank 0 could not continue reading. Empty if it could.
    """

    share: tuple[Any, ...] = ()
    remainder: int = -1
    is_over: bool = False
    error: str = ""


class DispatchedBatches(Sharded):
    """Loader for a job in which only rank 0 reads the data. In each round, rank 0 sends every other process at most one batch.

    Iterating over the loader is a collective: every process must request the same number of batches. If one process stops early, the
    other processes wait until the timeout of the process group, and then raise a CollectiveError that names the process that stopped.

    Dense tensors of any dtype are sent via gloo and arrive on the CPU. Everything else, such as sparse, quantised and empty tensors, is
    pickled by rank 0.

    Args:
        loader: The loader that rank 0 reads. Other ranks only use its length. For a map-style dataset, the loader yields the batches of
            processes 0, 1, ... in turn. For an iterable dataset, the loader's batch size is the batch size of each process.
        num_processes: The number of processes among which the samples are divided. Processes that get the same samples count once.
        process_index: The rank of this process in the job.
        even_batches: For an iterable dataset, whether to fill the last round with samples from the beginning of the epoch.
        first: For an iterable dataset, the index of the first round that is delivered. Earlier rounds are read and dropped.
        processes_per_share: The number of processes that get the same samples. Their ranks are consecutive.

    Attributes:
        is_collective: Always True.
        remainder: The number of samples in the last round, not counting the repeated samples that fill the round. -1 if no samples are
            repeated or the number is not known.
    """

    is_collective = True

    def __init__(
        self,
        loader: DataLoader[Any],
        num_processes: int,
        process_index: int,
        *,
        even_batches: bool,
        first: int = 0,
        processes_per_share: int = 1,
    ) -> None:
        self.loader, self.num_processes, self.process_index = loader, num_processes, process_index
        self.even_batches, self.first, self.processes_per_share = even_batches, first, processes_per_share
        self.remainder = -1

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet while unpickling
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        is_short_dropped = self._is_stream and self.loader.drop_last
        size = len(self.loader) if is_short_dropped else len(self.loader) + self.num_processes - 1
        return max(size // self.num_processes - self.first, 0)

    @property
    def _is_stream(self) -> bool:
        return isinstance(self.loader.dataset, IterableDataset)

    def starting_at(self, position: int, num_batches: int) -> DispatchedBatches:
        """Return a copy of this loader that skips the beginning of an epoch.

        Args:
            position: For a map-style dataset, the number of samples that all processes together skip. See ``resume.starting_at``.
            num_batches: For an iterable dataset, the number of rounds to skip. In each round, a process gets at most one batch.
        """
        later = copy.copy(self)
        if self._is_stream:
            later.first = self.first + num_batches
        else:
            later.loader = starting_at(self.loader, position, num_batches)
        return later

    def __iter__(self) -> Iterator[Any]:
        self.remainder = -1
        if self.process_index:
            return self._received()
        with self._error_sent():
            shares = self._rounds(iter(self.loader))
            for _ in itertools.islice(shares, self.first):
                pass
        return self._sent(shares)

    def _rounds(self, batches: Iterator[Any]) -> Iterator[tuple[list[Any], int]]:
        """Yield, for each round, its batches (at most one per process) and its ``remainder`` (see ``_Message``)."""
        if self._is_stream:
            yield from rounds(
                batches, self.num_processes, self.loader.batch_size, even_batches=self.even_batches, drop_last=self.loader.drop_last
            )
            return
        _, sampler = index_sampler(self.loader)
        while shares := list(itertools.islice(batches, self.num_processes)):
            yield shares, sampler.remainder  # the sampler may be ahead, but its value is right for the last round

    def _sent(self, all_shares: Iterator[tuple[list[Any], int]]) -> Iterator[Any]:
        is_over = False
        while not is_over:
            with self._error_sent():
                shares, self.remainder = next(all_shares, ([], self.remainder))
            is_over = len(shares) < self.num_processes
            self._send(shares, is_over=is_over)
            yield from shares[:1]

    @contextlib.contextmanager
    def _error_sent(self) -> Iterator[None]:
        """Context manager that sends an error raised in its block to the other processes, which would otherwise wait for the next batch."""
        try:
            yield
        except Exception as error:
            self._send([], error=f"{type(error).__name__}: {error}")
            raise

    def _send(self, shares: list[Any], is_over: bool = True, error: str = "") -> None:
        with watching(self._call()):
            self._send_to_each(shares, is_over, error)

    def _send_to_each(self, shares: list[Any], is_over: bool, error: str) -> None:
        under_way = []
        for rank in range(1, self.num_processes * self.processes_per_share):
            tensors: list[torch.Tensor] = []
            index = rank // self.processes_per_share
            share = tuple(tree_map(_packer(tensors), one) for one in shares[index : index + 1])
            object_collectives.send(_Message(share, self.remainder, is_over, error), rank)
            travelling = [_bytes_of(tensor) for tensor in tensors]  # kept alive until they have been sent
            under_way += [(dist.isend(values, dst=rank), values) for values in travelling]
        for work, _ in under_way:
            if work is not None:
                work.wait()

    def _received(self) -> Iterator[Any]:
        is_over = False
        while not is_over:
            with watching(self._call()):
                message: _Message = object_collectives.receive(0)
                shares = [tree_map(_unpacked, share, lambda thing: isinstance(thing, _Slot)) for share in message.share]
            if message.error:
                raise CollectiveError("rank 0 could not read the next batch", why=message.error, hint="see the log of rank 0")
            is_over, self.remainder = message.is_over, message.remainder
            yield from shares

    def _call(self) -> call_log.Call:
        assert dist.group.WORLD is not None
        return call_log.record_call(
            "a batch of a prepared loader that rank 0 reads", dist.group.WORLD, range(self.num_processes * self.processes_per_share)
        )


def _packer(tensors: list[torch.Tensor]) -> Callable[[Any], Any]:
    """Return a function for ``tree_map`` that replaces a dense tensor with a ``_Slot`` and appends the tensor to ``tensors``.

    The function clones other tensors, such as sparse, quantised and empty ones, and returns everything else unchanged.
    """

    def pack(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided or leaf.is_quantized or not leaf.numel():
            return leaf.clone()  # pickling a view would include its whole storage
        tensors.append(leaf)
        return _Slot(leaf.shape, leaf.dtype)

    return pack


def _unpacked(leaf: Any) -> Any:
    if not isinstance(leaf, _Slot):
        return leaf
    tensor = torch.empty(leaf.shape, dtype=leaf.dtype, device=torch.default_generator.device)
    dist.recv(_bytes_of(tensor), src=0)
    return tensor


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values as bytes on the CPU. gloo sends bytes, but does not support every dtype."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
