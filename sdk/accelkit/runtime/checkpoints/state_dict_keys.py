"""Map state dict keys to the names in the user's own model, without the ``_orig_mod.`` that ``torch.compile`` inserts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from accelkit.errors import CheckpointError
from accelkit.plugin_calls import call
from accelkit.specs.precision import Precision

_COMPILED = re.compile(r"(?<![^.])_orig_mod\.")  # the whole name of a submodule, and not the end of another name


def bare_state(module: torch.nn.Module, *, keep_vars: bool = False) -> dict[str, Any]:
    """Return the module's state dict with the keys that the dict would have if no part of the module were compiled.

    Args:
        module: The module.
        keep_vars: As for ``torch.nn.Module.state_dict``: whether the values are the parameters and buffers themselves. If False, the values
            are detached tensors. If a parameter or buffer is unverified (see ``unverified_tensors``), detaching it waits for the
            verification.

    Raises:
        CheckpointError: If two keys become equal when the prefixes of torch.compile are removed.
    """
    bare: dict[str, Any] = {}
    for key, value in module.state_dict(keep_vars=keep_vars).items():
        name = _bare(key)
        if name in bare:
            raise CheckpointError(
                f"the state of {type(module).__name__} cannot be saved",
                why=f"without the prefix of torch.compile, several of its keys are {name}, for example {key}",
                hint="register parameters and buffers on the model itself, not on the module that torch.compile returned",
            )
        bare[name] = value
    return bare


def state_of(thing: Any) -> dict[str, Any]:
    """Return the state dict of an object. For a module, return the result of ``bare_state``.

    Raises:
        CheckpointError: If ``bare_state`` finds two equal keys in a module.
        BrokenPluginError: If a precision fails to return its state dict.
    """
    if isinstance(thing, torch.nn.Module):
        return bare_state(thing)
    state: dict[str, Any] = call(thing, "state_dict") if isinstance(thing, Precision) else thing.state_dict()
    return state


def load_state_into(thing: Any, state: Mapping[str, Any]) -> None:
    """Restore a state that ``state_of`` returned.

    Raises:
        BrokenPluginError: If a precision fails to load its state.
    """
    if isinstance(thing, Precision):
        call(thing, "load_state_dict", state)
    else:
        thing.load_state_dict(renamed_for(thing, state) if isinstance(thing, torch.nn.Module) else state)


def renamed_for(module: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``state``, a result of ``bare_state``, with its keys renamed to those of ``module``, which may have compiled parts."""
    names = {_bare(key): key for key in module.state_dict(keep_vars=True)}
    return {names.get(key, key): value for key, value in state.items()}


def _bare(key: str) -> str:
    return _COMPILED.sub("", key)
