"""What precisions have in common: casting nested data, and torch's default dtype for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from accelkit import map_leaves

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def cast(data: T, dtype: torch.dtype, has_to_be: Callable[[torch.Tensor], bool]) -> T:
    """Nested data with the tensors for which ``has_to_be`` says so in ``dtype``; all else as it is."""
    import torch

    def one(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and has_to_be(leaf) else leaf

    return map_leaves(one, data)


def widen(data: T, narrow: torch.dtype) -> T:
    """Nested data with the tensors of dtype ``narrow`` in float32; all else as it is. On the step path: a tensor alone is not walked."""
    import torch

    if isinstance(data, torch.Tensor):
        return data.float() if data.dtype is narrow else data  # type: ignore[return-value]
    return map_leaves(lambda leaf: widen(leaf, narrow) if isinstance(leaf, torch.Tensor) else leaf, data)


_lock = threading.Lock()
_wanted: list[tuple[object, torch.dtype]] = []
_before: list[torch.dtype] = []


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Floating tensors that are made inside have this dtype, if nothing else is said.

    torch has one such setting for all threads. With several inside, the last to enter decides, and when the last has left it is what it was
    before the first.
    """
    import torch

    if torch.compiler.is_compiling():  # one thread traces, and its graph keeps the dtypes
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
        return
    mine = (object(), dtype)
    with _lock:
        if not _wanted:
            _before[:] = [torch.get_default_dtype()]
        _wanted.append(mine)
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        with _lock:
            _wanted.remove(mine)
            torch.set_default_dtype(_wanted[-1][1] if _wanted else _before[0])
