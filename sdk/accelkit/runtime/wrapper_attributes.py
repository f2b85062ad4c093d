"""Access to the attributes and methods of the user's module through the wrapper of a strategy, such as DistributedDataParallel."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from accelkit.errors import UnsupportedError
from accelkit.pytree import tree_leaves
from accelkit.runtime.dynamic_subclass import swap_class

_CHILD = "_accelkit_wrapped"


def show_attributes_of(module: torch.nn.Module, wrapper: torch.nn.Module) -> None:
    """Make the module's public attributes and methods, except its layers, available on its wrapper.

    The wrapper's own attributes take precedence over the module's attributes of the same names. Reading a layer of the module from the
    wrapper raises AttributeError. Does nothing if the module is not a child of the wrapper.

    A method that runs a layer raises UnsupportedError if it returns a tensor that requires gradients: the strategy does not see the
    layer's forward pass, so it would not average the gradients.
    """
    for name, child in wrapper.named_children():
        if child is module:
            wrapper.__dict__[_CHILD] = name
            swap_class(wrapper, attributes_of_child)


def attributes_of_child(cls: type) -> dict[str, Any]:
    """Return a dict with the ``__getattr__`` that ``swap_class`` adds to its subclass of the wrapper class ``cls``.

    If the wrapper has no attribute of the given name, this ``__getattr__`` returns the wrapped module's public attribute or method of that
    name. For a layer of the module, it raises AttributeError.
    """
    original: Any = cls

    def __getattr__(self: Any, name: str) -> Any:
        try:
            return original.__getattr__(self, name)
        except AttributeError:
            if name.startswith("_") or _CHILD not in self.__dict__:
                raise
        child = original.__getattr__(self, self.__dict__[_CHILD])
        value = getattr(child, name)
        if isinstance(value, torch.nn.Module):
            raise AttributeError(
                f"{type(child).__name__}.{name} is a layer inside {original.__name__}, which would not see a call to it; "
                f"to inspect it, use rt.unwrap_model(model).{name}"
            )
        is_own_method = isinstance(value, types.MethodType) and value.__self__ is child
        return _without_gradients(value, original.__name__) if is_own_method else value

    return {"__getattr__": __getattr__}


def _without_gradients(method: types.MethodType, wrapper: str) -> Callable[..., Any]:
    """Return a function that calls ``method`` and checks its result.

    The function raises UnsupportedError if the method ran a layer and returned a tensor that requires gradients.

    Args:
        method: A method of the user's module.
        wrapper: The class name of the strategy's wrapper, for the error.
    """

    @functools.wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        with _recording_calls() as called:
            result = method(*args, **kwargs)
        if called and any(isinstance(one, torch.Tensor) and one.requires_grad for one in tree_leaves(result)):
            raise UnsupportedError(
                f"the result of {method.__qualname__} cannot be trained",
                why=f"it ran layers of the model outside {wrapper}, which would not average their gradients over the processes",
                hint="call the model itself, and the method from its forward; or call the method under torch.no_grad()",
            )
        return result

    return checked


@contextlib.contextmanager
def _recording_calls() -> Iterator[list[str]]:
    """Yield a list, and append to it the class name of each module that is called inside the ``with`` block."""
    called: list[str] = []
    handle = register_module_forward_pre_hook(lambda module, _: called.append(type(module).__name__))
    try:
        yield called
    finally:
        handle.remove()
