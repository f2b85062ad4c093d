"""Collated batches cut and joined by samples: for streams, whose batches come as they come and are wanted in equal shares."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from accelkit.errors import PrepareError
from accelkit.pytree import map_leaves
from accelkit.runtime.data.samplers import cut_evenly


def count(batch: Any) -> int | None:
    """How many samples a batch holds: the first dimension of its tensors, the length of its lists of strings or numbers.

    None if they differ, or there is none: it cannot be cut then.
    """
    sizes = {len(column) for column in _columns(batch)}
    return sizes.pop() if len(sizes) == 1 else None


def cut(batch: Any, start: int, stop: int) -> Any:
    """The samples from ``start`` to ``stop``. What is no column of samples (a 0-d tensor, a name) is the same in each cut."""
    return map_leaves(lambda leaf: leaf[start:stop] if _is_column(leaf) else leaf, batch, _is_column)


def join(batches: list[Any]) -> Any:
    """The samples of all of them, in their order."""
    if len(batches) == 1:
        return batches[0]
    columns = zip(*map(_columns, batches), strict=True)

    def joined(leaf: Any) -> Any:
        if not _is_column(leaf):
            return leaf
        parts = next(columns)
        return torch.cat(parts) if isinstance(leaf, torch.Tensor) else type(leaf)(itertools.chain.from_iterable(parts))

    return map_leaves(joined, batches[0], _is_column)


def rounds(
    batches: Iterable[Any], num_processes: int, share: int | None, *, even: bool, drop_last: bool
) -> Iterator[tuple[list[Any], int]]:
    """A stream of batches as rounds: lists of one share a process, of exactly ``share`` samples each. No sample is lost between two.

    The last round is divided equally, and filled with samples from the beginning where that leaves a rest (``even``). If not ``even``,
    the last shares are shorter or absent.

    Args:
        batches: A loader's. With workers, short ones come in the middle too.
        share: Samples a process gets at once, and in a batch; None if the loader does not say. Batches that hold something else, or
            cannot be counted, are given whole.
        drop_last: Drop a last round that is not complete.

    Yields:
        The shares, and how many samples of the round are no repetition: -1 if all, or if it is not known.
    """
    stream = iter(batches)
    beginning = list(itertools.islice(stream, 2))
    stream = itertools.chain(beginning, stream)
    sizes = [count(batch) for batch in beginning]
    if share is None or None in sizes or (len(sizes) == 2 and sizes[0] != share):
        yield from _whole(stream, num_processes, even=even, drop_last=drop_last)
        return
    kept: list[Any] = []  # the first samples, to fill with
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
    if not even:
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


def _whole(batches: Iterable[Any], num_processes: int, *, even: bool, drop_last: bool) -> Iterator[tuple[list[Any], int]]:
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
        yield shares + list(itertools.islice(itertools.cycle(beginning), (num_processes - len(shares)) * even)), -1


def _take(stock: list[Any], share: int, num_processes: int) -> tuple[list[Any], list[Any]]:
    """A round from the stock, and what is left of that. Batches that are shares already are neither cut nor copied."""
    if len(stock) == num_processes and all(count(batch) == share for batch in stock):
        return stock, []
    whole = join(stock)
    used = share * num_processes
    rest = _counted(whole) - used
    shares = [cut(whole, start, start + share) for start in range(0, used, share)]
    return shares, [cut(whole, used, used + rest)] if rest else []


def _first(shares: list[Any], num_samples: int) -> list[Any]:
    """As many of the shares as hold that many samples, at most."""
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
            "a batch cannot be cut into shares",
            why="its tensors and lists are of different lengths, those of other batches are not",
            hint="collate samples along the first dimension, or use dispatch_batches=False",
        )
    return size


def _columns(batch: Any) -> list[Any]:
    found: list[Any] = []
    map_leaves(lambda leaf: found.append(leaf) if _is_column(leaf) else None, batch, _is_column)
    return found


def _is_column(thing: Any) -> bool:
    """One entry a sample: a tensor with a dimension, a list of strings or numbers."""
    if isinstance(thing, torch.Tensor):
        return thing.dim() > 0
    if not isinstance(thing, list | tuple) or hasattr(thing, "_fields") or not thing:
        return False
    return not any(isinstance(item, torch.Tensor | Mapping | list | tuple) or dataclasses.is_dataclass(item) for item in thing)
