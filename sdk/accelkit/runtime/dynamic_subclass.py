"""Changing what an object does without changing the object: its class is swapped for a cached subclass.

The object keeps its identity, its ``isinstance``, its attributes and its class's name; it pickles and deep-copies, and is restored
with the same behaviour. One subclass exists for each class and behaviour.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_NEWOBJ: Any = getattr(copyreg, "__newobj__")  # noqa: B009 # typeshed does not know it

Behaviour = Callable[[type], dict[str, Any]]
"""Takes the original class and gives the attributes that its subclass overrides. A module-level function, so that it pickles by name."""


def swap_class(instance: T, behaviour: Behaviour) -> T:
    """Give ``instance`` the behaviour, in place; nothing happens if it has it already. Returns ``instance``."""
    cls: Any = type(instance)
    if getattr(cls, "_accelkit_behaviour", None) is not behaviour:
        instance.__class__ = swapped_class(cls, behaviour)
    return instance


def restore_class(instance: Any, behaviour: Behaviour) -> bool:
    """Take the behaviour from ``instance``, in place. Returns False, and does nothing, unless it was the last one given."""
    cls: Any = type(instance)
    if vars(cls).get("_accelkit_behaviour") is not behaviour:
        return False
    instance.__class__ = cls._accelkit_original
    return True


@functools.cache
def swapped_class(cls: type, behaviour: Behaviour) -> type:
    """The one subclass of ``cls`` with this behaviour; named as ``cls``."""
    attributes = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": _reduce_ex,
        "_accelkit_behaviour": behaviour,
        "_accelkit_original": cls,
    }
    return type(cls.__name__, (cls,), attributes | behaviour(cls))


def _reduce_ex(self: Any, protocol: Any) -> Any:
    """As the original class reduces itself, with the subclass (which no module has) replaced by how to make it."""
    swapped = type(self)
    reduced = swapped._accelkit_original.__reduce_ex__(self, protocol)
    if isinstance(reduced, str):
        return reduced
    function, arguments, *rest = reduced
    if function is _NEWOBJ and arguments and arguments[0] is swapped:
        return (_new, (swapped._accelkit_original, swapped._accelkit_behaviour, *arguments[1:]), *rest)
    return (function, arguments, *rest)


def _new(cls: type, behaviour: Behaviour, *arguments: Any) -> Any:
    swapped = swapped_class(cls, behaviour)
    return swapped.__new__(swapped, *arguments)
