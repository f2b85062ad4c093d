"""Casting of nested data, and a context manager for torch's default dtype."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from accelkit import tree_map

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def cast(data: T, dtype: torch.dtype, has_to_be: Callable[[torch.Tensor], bool]) -> T:
    """Return nested data in which the tensors that ``has_to_be`` selects are cast to ``dtype``, and everything else is unchanged."""
    import torch

    def one(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and has_to_be(leaf) else leaf

    return tree_map(one, data)


def widen(data: T, narrow: torch.dtype) -> T:
    """Return ``data``, which may be nested, with its tensors of dtype ``narrow`` cast to float32 and everything else unchanged.

    ``widen`` runs in every step. To save time, it casts a single tensor directly, without ``tree_map``.
    """
    import torch

    if isinstance(data, torch.Tensor):
        return data.float() if data.dtype is narrow else data  # type: ignore[return-value]
    return tree_map(lambda leaf: widen(leaf, narrow) if isinstance(leaf, torch.Tensor) else leaf, data)


_lock = threading.Lock()
_wanted: list[tuple[object, torch.dtype]] = []
_before: list[torch.dtype] = []


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Context manager that makes ``dtype`` the default dtype of floating-point tensors.

    torch has only one default dtype for all threads. If several threads are inside ``default_dtype`` at the same time, the thread that
    entered last determines the default dtype. When all threads have left, the default dtype is what it was before the first thread
    entered.
    """
    import torch

    if torch.compiler.is_dynamo_compiling():  # unlike is_compiling, it is False in other threads while one thread compiles
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
