"""Move batches of any nested structure to the device."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from accelkit.plugin_calls import invalid_result, wrong_result
from accelkit.pytree import tree_leaves, tree_map
from accelkit.specs.accelerator import Accelerator

T = TypeVar("T")


def move(data: T, device: torch.device, non_blocking: bool = False) -> T:
    """Return ``data`` with every tensor, and every other object that has a ``to`` method, moved to ``device``.

    ``non_blocking`` applies to tensors only.
    """

    def move_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if _moves_itself(leaf) else leaf

    return tree_map(move_leaf, data, _moves_itself)


def _moves_itself(thing: Any) -> bool:
    """Return whether an object is not a class and has a ``to`` method.

    Tensors, packed sequences and tokenizers' encodings have a ``to`` method. A class may have one too, but is not data.
    """
    return callable(getattr(thing, "to", None)) and not isinstance(thing, type)


def uploaded(batches: Iterator[Any], device: torch.device, accelerator: Accelerator) -> Iterator[Any]:
    """Yield each batch on the device. The accelerator's ``upload`` moves the tensors; ``to`` moves other objects that have this method.

    Raises:
        BrokenPluginError: If the result of ``upload`` does not yield one list for each batch, with as many tensors as the batch has.
    """
    waiting: deque[tuple[Any, int]] = deque()

    def tensors() -> Iterator[list[torch.Tensor]]:
        for batch in batches:
            given = [leaf for leaf in tree_leaves(batch, _moves_itself) if isinstance(leaf, torch.Tensor)]
            waiting.append((batch, len(given)))
            yield given

    first = list(itertools.islice(ahead := tensors(), 1))  # the first batch is read in this thread: a sampler may start with a collective
    moved_batches = accelerator.upload(itertools.chain(first, ahead), device)
    if moved_batches is None:
        raise wrong_result(accelerator, "upload", moved_batches, "an iterable of lists of tensors")
    iterator = iter(moved_batches)
    try:
        for moved in iterator:
            if not waiting:
                raise invalid_result(accelerator, "upload", "its iterator yielded more batches than it was given")
            batch, number = waiting.popleft()
            if not isinstance(moved, list | tuple):
                raise wrong_result(accelerator, "upload", moved, "an iterator over lists of tensors")
            if len(moved) != number:
                raise invalid_result(accelerator, "upload", f"its iterator yielded {len(moved)} tensors for a batch with {number} tensors")
            arrived = iter(moved)
            yield tree_map(lambda leaf, arrived=arrived: _moved(leaf, arrived, device), batch, _moves_itself)  # type: ignore[misc]
    except GeneratorExit:  # the user's loop ended early
        if callable(close := getattr(iterator, "close", None)):
            close()
        raise
    try:
        has_ended = not waiting and next(ahead, None) is None
    except ValueError:  # a thread of the plugin is still reading the batches
        has_ended = False
    if not has_ended:
        raise invalid_result(accelerator, "upload", "its iterator ended before it had yielded all batches")


def _moved(leaf: Any, arrived: Iterator[torch.Tensor], device: torch.device) -> Any:
    if isinstance(leaf, torch.Tensor):
        return next(arrived)
    return leaf.to(device) if _moves_itself(leaf) else leaf
