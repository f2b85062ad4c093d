"""Search for the objects of a program that still hold certain tensors, so that a warning can name these objects."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_CONTAINERS = (list, tuple, set, frozenset, dict)
_DEEPEST = 4  # levels of containers, such as a list in a dict in a list in an object's __dict__
_OWN = ("torch.", "accelkit.")


def names_of_holders(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return the class names of the objects whose attributes hold any of the tensors, directly or inside containers.

    The names are sorted and have no duplicates.

    Neither local variables of functions nor global variables are reported, because a training loop normally leaves its last batch in such
    variables. Objects of torch and accelkit are not reported either.
    """
    seen = {id(tensors)}
    found: set[str] = set()
    things: Iterable[Any] = list(tensors)
    for _ in range(_DEEPEST + 1):
        seen |= {id(thing) for thing in things}
        holders = [holder for holder in gc.get_referrers(*things) if id(holder) not in seen and holder is not things] if things else []
        things = [holder for holder in holders if isinstance(holder, _CONTAINERS) and not _is_namespace(holder)]
        found |= {_class_name(holder) for holder in holders if _is_reported(holder)}
    return sorted(found)


def stack_level_outside_of_torch() -> int:
    """Return the ``stacklevel`` that makes a warning from the calling function point to the user's code.

    The user's code is the innermost stack frame that is neither in torch nor in accelkit.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(_OWN):
        level, frame = level + 1, frame.f_back
    return level


def _is_reported(holder: Any) -> bool:
    unreported = (
        *_CONTAINERS,
        type,
        types.FrameType,
        types.FunctionType,
        types.MethodType,
        types.ModuleType,
        types.CellType,
        types.GeneratorType,
    )
    return not isinstance(holder, unreported) and not _class_name(holder).startswith((*_OWN, "builtins."))


def _is_namespace(holder: Any) -> bool:
    return isinstance(holder, dict) and "__builtins__" in holder


def _class_name(holder: Any) -> str:
    return f"{type(holder).__module__}.{type(holder).__qualname__}"
