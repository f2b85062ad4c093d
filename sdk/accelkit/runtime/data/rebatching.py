"""Split and concatenate collated batches along the sample dimension, to divide streams with batches of any size into equal shares."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from accelkit.errors import PrepareError
from accelkit.pytree import tree_map
from accelkit.runtime.data.samplers import cut_evenly


def count(batch: Any) -> int | None:
    """Return the number of samples in a batch, which is the length of its tensors and of its flat lists and tuples.

    A list is flat if it is not empty and contains no tensors or containers: a list of strings or numbers, for example. The length of a
    tensor is the size of its first dimension; 0-d tensors are ignored. The result is None if these lengths differ, or if the batch has no
    such tensor or list. Such a batch cannot be split.
    """
    sizes = {len(column) for column in _columns(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def cut(batch: Any, start: int, stop: int) -> Any:
    """Return the samples ``start:stop`` of a batch. Values with no entry per sample (a 0-d tensor, a string) are returned unchanged."""
    return tree_map(lambda leaf: leaf[start:stop] if _is_column(leaf) else leaf, batch, _is_column)


def join(batches: list[Any]) -> Any:
    """Return one batch with the samples of all batches, in order.

    Values that do not have one entry per sample are taken from the first batch.

    Raises:
        PrepareError: If the batches have different numbers of tensors and lists.
    """
    if len(batches) == 1:
        return batches[0]
    found = [_columns(batch) for batch in batches]
    if len(numbers := sorted({len(columns) for columns in found})) > 1:
        raise PrepareError(
            "batches cannot be divided among the processes",
            why=f"the number of their tensors and lists differs ({numbers[0]} and {numbers[-1]}), so they cannot be concatenated",
            hint="collate all batches with the same fields, or use dispatch_batches=False",
        )
    columns = zip(*found, strict=True)

    def joined(leaf: Any) -> Any:
        if not _is_column(leaf):
            return leaf
        parts = next(columns)
        return torch.cat(parts) if isinstance(leaf, torch.Tensor) else type(leaf)(itertools.chain.from_iterable(parts))

    return tree_map(joined, batches[0], _is_column)


def rounds(
    batches: Iterable[Any], num_processes: int, share: int | None, *, even_batches: bool, drop_last: bool
) -> Iterator[tuple[list[Any], int]]:
    """Regroup a stream of batches into rounds. A round is a list with one share per process. A share normally has ``share`` samples.

    Samples that do not fit into a round go into the next round. With ``even_batches``, samples from the beginning of the stream fill the
    last round until its size is a multiple of the number of processes, and the round is divided equally. Otherwise, the last shares of this
    round are shorter or missing.

    Args:
        batches: The batches of a loader. With workers, short batches may also occur in the middle.
        num_processes: The number of shares in a round.
        share: The number of samples that a process gets in a round, which is the batch size. None if the loader does not specify a batch
            size. Each share is a whole batch in three cases: ``share`` is None; there are several batches, and the first does not have
            ``share`` samples; or the samples of one of the first two batches cannot be counted. In these cases, ``even_batches`` fills the
            last round with whole batches from the beginning of the stream.
        even_batches: Whether to fill the last round.
        drop_last: Whether to drop an incomplete last round.

    Yields:
        The shares, and the number of samples in the round, not counting the repeated samples that fill the round. This number is -1 if no
        samples are repeated or the number is not known.

    Raises:
        PrepareError: If the samples of a later batch cannot be counted, or if batches cannot be concatenated.
    """
    stream = iter(batches)
    beginning = list(itertools.islice(stream, 2))
    stream = itertools.chain(beginning, stream)
    sizes = [count(batch) for batch in beginning]
    if share is None or None in sizes or (len(sizes) == 2 and sizes[0] != share):
        yield from _whole(stream, num_processes, even_batches=even_batches, drop_last=drop_last)
        return
    kept: list[Any] = []  # the first samples, used to fill the last round
    stock: list[Any] = []
    size, wanted = 0, share * num_processes
    for batch in stream:
        stock.append(batch)
        size += _counted(batch)
        while size >= wanted:
            shares, stock = _take(stock, share, num_processes)
            size -= wanted
            kept = kept or _first(shares, num_processes)
            yield shares, -1
    if not size or drop_last:
        return
    rest = join(stock)
    if not even_batches:
        yield [cut(rest, start, start + share) for start in range(0, size, share)], -1
        return
    lacking = -size % num_processes
    if lacking:
        source = kept or [rest]
        while sum(map(_counted, source)) < lacking:
            source = source * 2
        rest = join([rest, cut(join(source), 0, lacking)])
    pieces = cut_evenly(range(size + lacking), num_processes)
    yield [cut(rest, piece.start, piece.stop) for piece in pieces], size if lacking else -1


def _whole(batches: Iterable[Any], num_processes: int, *, even_batches: bool, drop_last: bool) -> Iterator[tuple[list[Any], int]]:
    beginning: list[Any] = []
    shares: list[Any] = []
    for batch in batches:
        if len(beginning) < num_processes:
            beginning.append(batch)
        shares.append(batch)
        if len(shares) == num_processes:
            yield shares, -1
            shares = []
    if shares and not drop_last:
        yield shares + list(itertools.islice(itertools.cycle(beginning), (num_processes - len(shares)) * even_batches)), -1


def _take(stock: list[Any], share: int, num_processes: int) -> tuple[list[Any], list[Any]]:
    """Take one share of ``share`` samples for each process from the beginning of ``stock``, which must hold enough samples.

    If ``stock`` consists of one batch of this size for each process, these batches are the shares: nothing is cut or copied.

    Returns:
        The shares, and a list with one batch of the remaining samples. The list is empty if no samples remain.
    """
    if len(stock) == num_processes and all(count(batch) == share for batch in stock):
        return stock, []
    whole = join(stock)
    used = share * num_processes
    rest = _counted(whole) - used
    shares = [cut(whole, start, start + share) for start in range(0, used, share)]
    return shares, [cut(whole, used, used + rest)] if rest else []


def _first(shares: list[Any], num_samples: int) -> list[Any]:
    """Return the shortest prefix of ``shares`` that holds at least ``num_samples`` samples in total.

    If all shares together hold fewer samples, return all of them.
    """
    found, size = [], 0
    for share in shares:
        if size < num_samples:
            found.append(share)
            size += _counted(share)
    return found


def _counted(batch: Any) -> int:
    size = count(batch)
    if size is None:
        raise PrepareError(
            "a batch cannot be split among the processes",
            why="its tensors and lists have different lengths, unlike those of other batches",
            hint="collate samples along the first dimension, or use dispatch_batches=False",
        )
    return size


def _columns(batch: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(lambda leaf: found.append(leaf) if _is_column(leaf) else None, batch, _is_column)
    return found


def _is_column(thing: Any) -> bool:
    """Return whether a value is assumed to have one entry per sample.

    Such a value is a tensor with at least one dimension, or a flat list or tuple that is not empty and not a named tuple.
    """
    if isinstance(thing, torch.Tensor):
        return thing.dim() > 0
    if not isinstance(thing, list | tuple) or hasattr(thing, "_fields") or not thing:
        return False
    return not any(isinstance(item, torch.Tensor | Mapping | list | tuple) or dataclasses.is_dataclass(item) for item in thing)
