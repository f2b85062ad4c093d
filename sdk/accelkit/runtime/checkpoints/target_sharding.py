"""Determine, from the current modules and optimizers, which DTensor layout each tensor of a checkpoint gets when it is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelkit.runtime.checkpoints.dcp_io import Layout
from accelkit.runtime.checkpoints.state_dict_keys import bare_state

_OF_PARAMETER = re.compile(r"state\.(\d+)\.(.+)")


def is_sharded(targets: Mapping[str, Any]) -> bool:
    """Return whether ``targets`` contains a module or an optimizer that has DTensors.

    A module has DTensors if one of its parameters or buffers is a DTensor. An optimizer has DTensors if its state contains one.
    """
    for thing in targets.values():
        tensors: list[Any] = []
        if isinstance(thing, torch.nn.Module):
            tensors = [*thing.parameters(), *thing.buffers()]
        elif isinstance(thing, torch.optim.Optimizer):
            tensors = [value for values in thing.state.values() if isinstance(values, dict) for value in values.values()]
        if any(isinstance(tensor, DTensor) for tensor in tensors):
            return True
    return False


def layout_of(targets: Mapping[str, Any]) -> Layout:
    """Return the function that gives each loaded tensor its layout, according to the current modules and optimizers.

    A loaded tensor of a module gets the layout of the tensor with the same key in the module's state dict. A loaded tensor of an
    optimizer's state, such as ``exp_avg``, gets the layout of the tensor with the same name and parameter in the optimizer's current state.
    If the optimizer has no such tensor, for example because it has taken no step yet, a loaded tensor with the shape of its parameter
    gets the layout of the parameter.

    Args:
        targets: The objects to load into, by name in the checkpoint. Objects other than modules and optimizers have no DTensors.
    """
    sharded: dict[str, DTensor] = {}
    parameters: dict[str, list[torch.Tensor]] = {}
    for name, thing in targets.items():
        if isinstance(thing, torch.nn.Module):
            sharded |= {f"{name}.{key}": tensor for key, tensor in bare_state(thing, keep_vars=True).items() if isinstance(tensor, DTensor)}
        elif isinstance(thing, torch.optim.Optimizer):
            parameters[name] = [parameter for group in thing.param_groups for parameter in group["params"]]
            for index, parameter in enumerate(parameters[name]):
                values = thing.state.get(parameter, {})
                sharded |= {f"{name}.state.{index}.{key}": value for key, value in values.items() if isinstance(value, DTensor)}

    def layout(path: str, size: torch.Size) -> DTensor | None:
        found = sharded.get(path)
        if found is None:
            name, _, rest = path.partition(".")
            match = _OF_PARAMETER.fullmatch(rest) if name in parameters else None
            index = int(match[1]) if match else -1
            parameter = parameters[name][index] if match and index < len(parameters[name]) else None
            found = parameter if isinstance(parameter, DTensor) else None
        return found if found is not None and found.shape == size else None

    return layout
