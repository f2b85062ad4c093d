"""Change the behaviour of an object in place by swapping its class for a cached subclass.

The object keeps its identity, its attributes and its class name, and is still an instance of its original class. It can be pickled and
deep-copied. The copy has the same behaviour, unless the class defines a ``__reduce__`` that creates copies in its own way. There is one
subclass for each combination of an original class and a ``Behaviour``, a function that returns the attributes of the subclass.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

Behaviour = Callable[[type], dict[str, Any]]
"""A function that takes the original class and returns the attributes that its subclass overrides. The function must be defined at
module level, so that it can be pickled by name."""


def swap_class(instance: T, behaviour: Behaviour) -> T:
    """Replace the class of ``instance``, in place, by a subclass with the attributes that ``behaviour`` returns. Return ``instance``.

    Does nothing if ``instance`` already has the subclass for this ``behaviour``.
    """
    cls: Any = type(instance)
    if getattr(cls, "_accelkit_behaviour", None) is not behaviour:
        instance.__class__ = swapped_class(cls, behaviour)
    return instance


def restore_class(instance: Any, behaviour: Behaviour) -> bool:
    """Undo ``swap_class(instance, behaviour)``, in place.

    Returns:
        Whether the class was restored. ``instance`` is left unchanged if its current class is not the subclass for this ``behaviour``, for
        example because ``swap_class`` has since been called with another behaviour.
    """
    cls: Any = type(instance)
    if vars(cls).get("_accelkit_behaviour") is not behaviour:
        return False
    instance.__class__ = cls._accelkit_original
    return True


@functools.cache
def swapped_class(cls: type, behaviour: Behaviour) -> type:
    """Return the subclass of ``cls`` with the attributes that ``behaviour`` returns. It is created once and has the name of ``cls``."""
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
    """Return what ``__reduce_ex__`` of the original class returns, changed so that it does not refer to the subclass by name.

    No module contains the subclass, so pickle cannot find it by name. Two kinds of results are therefore changed: those that call the
    subclass, and those that pass it as the first argument to another function, such as one from ``copyreg``. The changed results call
    ``_call`` instead, which creates the subclass if it does not exist yet. Any other result is returned unchanged.
    """
    swapped = type(self)
    reduced = swapped._accelkit_original.__reduce_ex__(self, protocol)
    if isinstance(reduced, str):
        return reduced
    function, arguments, *rest = reduced
    if function is swapped:
        function, arguments = operator.call, (swapped, *arguments)
    if arguments and arguments[0] is swapped:
        return (_call, (function, swapped._accelkit_original, swapped._accelkit_behaviour, *arguments[1:]), *rest)
    return (function, arguments, *rest)


def _call(function: Callable[..., Any], cls: type, behaviour: Behaviour, *arguments: Any) -> Any:
    """Recreate a pickled or copied object by calling ``function``.

    The arguments of the call are the subclass of ``cls`` for ``behaviour``, followed by ``arguments``.
    """
    return function(swapped_class(cls, behaviour), *arguments)
