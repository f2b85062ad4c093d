"""Divide batches of indices, or a stream of samples, among the processes of a job.

Each process gets the samples that Accelerate would give it, in the same order, including those that fill the last batches. Each process
computes its own share; nothing in this module communicates with other processes.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from torch.utils.data import BatchSampler, IterableDataset, Sampler

Order = Callable[[], AbstractContextManager[Any]]


class Sharded:
    """Base class of samplers and datasets that divide the samples of a loader among the processes and can fill the last global batch.

    Attributes:
        remainder: The number of samples in the last global batch of an epoch, not counting the repeated samples that fill the batch. -1 if
            no samples are repeated, the number is not known, or the last batch has not been reached.
    """

    remainder = -1


class ShardedBatches(Sharded, Sampler[Any]):
    """A sampler that yields one process's share of the batches of another sampler, or all shares if ``process_index`` is None.

    In each round, processes 0, 1, ... get one batch each, in this order. With ``split_batches``, each batch is a round, and each process
    gets a piece of the batch.

    Args:
        batches: A sampler that yields lists of indices, or single keys if ``holds_lists`` is False.
        num_processes: The number of processes.
        process_index: The index of the process whose share is yielded. None yields all shares, round by round.
        split_batches: Whether to cut each batch into pieces instead of distributing whole batches in turn.
        even_batches: Whether to fill the last round with samples from the beginning, so that every process gets the same number of full
            batches. Otherwise, the last batch of a process may be shorter or missing. In both cases, an incomplete last round is dropped if
            ``batches.drop_last`` is set. With ``split_batches``, ``even_batches`` affects not only the last batch, but every batch with
            fewer samples than there are processes. If ``even_batches`` is True, such a batch is filled until every process gets one sample.
            If False, some processes get no piece of the batch.
        holds_lists: Whether an item of ``batches`` is a batch.
        first: How many samples or items to skip at the beginning. If ``batches`` is torch's ``BatchSampler``, samples are counted, because
            their order does not depend on the batch size. Otherwise, items of ``batches`` are counted.

    Attributes:
        batch_size: The number of samples in a batch of ``batches``. None if ``batches`` does not specify it or ``holds_lists`` is False. If
            it is None and ``split_batches`` is False, the last round is filled with whole items of ``batches``, not with single samples.
        remainder: The number of samples in the last round, not counting the repeated samples that fill the round. -1 if no samples are
            repeated, the number is not known, or the last round has not been reached.
    """

    def __init__(
        self,
        batches: Any,
        num_processes: int,
        process_index: int | None,
        *,
        split_batches: bool = False,
        even_batches: bool = True,
        holds_lists: bool = True,
        first: int = 0,
    ) -> None:
        self.batches, self.num_processes, self.process_index = batches, num_processes, process_index
        self.split_batches, self.even_batches, self.holds_lists, self.first = split_batches, even_batches, holds_lists, first
        self.batch_size: int | None = getattr(batches, "batch_size", None) if holds_lists else None
        self.drop_last = bool(getattr(batches, "drop_last", False))
        self.remainder = -1

    def starting_at(self, first: int) -> Self:
        """Return a copy that divides the batches in the same way. The copy skips ``first`` samples (or items; see the class) in addition to
        those that this sampler skips."""
        later = copy.copy(self)
        later.first = self.first + first
        return later

    def __iter__(self) -> Iterator[Any]:
        self.remainder = -1
        for shares in self._split_rounds() if self.split_batches else self._whole_rounds():
            if self.process_index is None:
                yield from shares
            elif self.process_index < len(shares):
                yield shares[self.process_index]

    def __len__(self) -> int:
        batches = num_batches_from(self.batches, self.first)
        if self.split_batches:
            missing = self.num_processes - self._num_last_pieces() if batches else 0
            if self.process_index is None:
                return batches * self.num_processes - missing
            return batches - (self.process_index >= self.num_processes - missing)
        rounds, rest = divmod(batches, self.num_processes)
        if self.drop_last or not rest:
            rest = 0
        elif self.even_batches:
            rest = self.num_processes
        if self.process_index is None:
            return rounds * self.num_processes + rest
        return rounds + (self.process_index < rest)

    def _num_last_pieces(self) -> int:
        """Return the number of pieces of the last batch. If its size is not known in advance, every process is assumed to get a piece."""
        if self.even_batches or self.drop_last or type(self.batches) is not BatchSampler:
            return self.num_processes
        size = self.batches.batch_size
        rest = max(len(self.batches.sampler) - self.first, 0) % size  # type: ignore[arg-type]
        return -(-rest // (size // self.num_processes)) if rest and size >= self.num_processes else self.num_processes

    def _remaining(self, beginning: list[Any], count: int) -> Iterator[Any]:
        """Yield the batches of the epoch without the first ``self.first`` samples or items (see the class).

        The first ``count`` batches of the epoch are appended to ``beginning``. If ``batches`` is torch's ``BatchSampler``, one list with
        the indices of all these batches is appended instead. The caller fills the last round (see the class) from ``beginning``.
        """
        if type(self.batches) is BatchSampler:
            order = iter(self.batches.sampler)
            head = list(itertools.islice(order, count * self.batches.batch_size))
            beginning.append(head)
            rest = itertools.islice(itertools.chain(head, order), self.first, None)
            yield from BatchSampler(rest, self.batches.batch_size, self.batches.drop_last)
            return
        for number, batch in enumerate(self.batches):
            if number < count:
                beginning.append(batch)
            if number >= self.first:
                yield batch

    def _whole_rounds(self) -> Iterator[list[Any]]:
        """Yield rounds, which are lists with one batch for each process.

        A round is yielded only after the batch that follows it has been read. If no batch follows, the round is the last one, which may be
        filled, shorter or dropped (see the class).
        """
        beginning: list[Any] = []
        shares: list[Any] = []
        for batch in self._remaining(beginning, self.num_processes):
            if len(shares) == self.num_processes:
                yield shares
                shares = []
            shares.append(batch)
        is_complete = len(shares) == self.num_processes
        if not shares or (self.drop_last and not is_complete):
            return
        is_full = is_complete and (self.batch_size is None or all(len(batch) >= self.batch_size for batch in shares))
        if self.even_batches and not is_full and not self.drop_last:
            self.remainder = sum(map(len, shares)) if self.holds_lists else -1
            shares = self._filled(shares, beginning)
        yield shares

    def _filled(self, shares: list[Any], beginning: list[Any]) -> list[Any]:
        lacking = self.num_processes - len(shares)
        if self.batch_size is None:
            return shares + list(itertools.islice(itertools.cycle(beginning), lacking))
        samples = itertools.cycle(itertools.chain.from_iterable(beginning))
        return [[*batch, *itertools.islice(samples, max(self.batch_size - len(batch), 0))] for batch in shares + [[]] * lacking]

    def _split_rounds(self) -> Iterator[list[Any]]:
        beginning: list[Any] = []
        held: Sequence[Any] | None = None
        for batch in self._remaining(beginning, 1):
            if held is not None and len(held) < self.num_processes and not self.even_batches:
                yield [held[index : index + 1] for index in range(len(held))]
            elif held is not None:
                yield self._pieces(held, beginning[0], self.num_processes)
            held = batch
        if held is None:
            return
        size = self.batch_size or max(len(held), self.num_processes)
        if len(held) >= size or self.even_batches:
            if len(held) < size:
                if self.drop_last:
                    return
                self.remainder = len(held)
            yield self._pieces(held, beginning[0], size)
        elif not self.drop_last:
            piece = size // self.num_processes
            yield [held[start : start + piece] for start in range(0, len(held), piece)]

    def _pieces(self, batch: Sequence[Any], beginning: Sequence[Any], least: int) -> list[Any]:
        """Cut a batch into one piece per process. The sizes of the pieces are as equal as possible.

        If the batch has fewer than ``least`` samples, it is first filled with samples from ``beginning`` until it has ``least`` samples.
        """
        whole = [*batch, *itertools.islice(itertools.cycle(beginning), max(least - len(batch), 0))]
        return cut_evenly(whole, self.num_processes)


def num_batches_from(batches: Any, first: int) -> int:
    """Return how many items the sampler ``batches`` yields if ``first`` samples or items are skipped at the beginning.

    For torch's ``BatchSampler``, but not for its subclasses, samples are skipped. For any other sampler, items are skipped.

    Raises:
        TypeError: If the sampler has no length.
    """
    if type(batches) is not BatchSampler:
        return max(len(batches) - first, 0)
    rest = max(len(batches.sampler) - first, 0)  # type: ignore[arg-type]
    return rest // batches.batch_size if batches.drop_last else -(-rest // batches.batch_size)


def cut_evenly(samples: Sequence[Any], pieces: int) -> list[Any]:
    """Return ``samples`` cut into ``pieces`` consecutive pieces of nearly equal size."""
    size = len(samples)
    return [samples[size * number // pieces : size * (number + 1) // pieces] for number in range(pieces)]


class ShardedDataset(Sharded, IterableDataset[Any]):
    """An iterable dataset that yields one process's share of the samples of another dataset.

    Every process reads the whole stream and keeps its share: in each round, processes 0, 1, ... take ``share`` samples each, in this order.
    If a process has several workers, each of them reads a part of the stream.

    Args:
        dataset: The user's dataset. It divides itself among workers, as torch requires.
        num_processes: The number of processes.
        process_index: The index of the process whose share is yielded.
        share: The number of samples that each process takes in a round, which is the size of its batches.
        even_batches: Whether to fill the last round with samples from the first round, so that every process gets the same number of full
            batches.
        drop_last: Whether to drop an incomplete last round.

    Attributes:
        remainder: As in ``ShardedBatches``. With workers, it is set on a worker's copy of the dataset, but not in the training process.
    """

    def __init__(
        self, dataset: Any, num_processes: int, process_index: int, share: int, *, even_batches: bool = True, drop_last: bool = False
    ) -> None:
        self.dataset, self.num_processes, self.process_index, self.share = dataset, num_processes, process_index, share
        self.even_batches, self.drop_last = even_batches, drop_last
        self.remainder = -1

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not set yet while unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        """Return the number of samples of this process.

        Raises:
            TypeError: If the dataset has no length.
        """
        size: int = len(self.dataset)
        rounds, rest = divmod(size, self.share * self.num_processes)
        if self.drop_last or not rest:
            rest = 0
        elif self.even_batches:
            rest = self.share
        else:
            rest = min(max(rest - self.process_index * self.share, 0), self.share)
        return rounds * self.share + rest

    def __iter__(self) -> Iterator[Any]:
        self.remainder = -1
        size, start = self.share * self.num_processes, self.share * self.process_index
        beginning: list[Any] = []
        samples: list[Any] = []
        for sample in self.dataset:
            samples.append(sample)
            if len(samples) == size:
                yield from samples[start : start + self.share]
                beginning, samples = beginning or samples, []
        if samples and not self.drop_last:
            if self.even_batches:
                self.remainder = len(samples)
                samples += list(itertools.islice(itertools.cycle(beginning or samples[:]), size - len(samples)))
            yield from samples[start : start + self.share]


class SharedOrder(Sampler[Any]):
    """A sampler that yields the batches of another sampler. Their order is drawn inside a context that gives all processes the same order.

    Args:
        batches: Any sampler.
        order: A function that creates the context. It is called for each pass. The context is left after the first batch is drawn, because
            torch's samplers draw their order before they yield the first batch.
    """

    def __init__(self, batches: Any, order: Order) -> None:
        self.batches, self.order = batches, order
        for name in ("batch_size", "drop_last"):
            if hasattr(batches, name):
                setattr(self, name, getattr(batches, name))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        with self.order():
            batches = iter(self.batches)
            beginning = list(itertools.islice(batches, 1))
        yield from beginning
        yield from batches
