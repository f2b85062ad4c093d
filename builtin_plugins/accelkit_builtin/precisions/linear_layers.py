"""Selection of the ``Linear`` layers that a precision converts."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from accelkit import Precision, UnsupportedError

if TYPE_CHECKING:
    import torch


def choose_linears(
    module: torch.nn.Module,
    precision: Precision,
    *,
    converted: tuple[type, ...],
    ignore: Collection[str] = (),
    multiples: tuple[int, int] = (1, 1),
) -> Mapping[str, torch.nn.Linear]:
    """Return the layers to convert, by name.

    Only layers of the class ``torch.nn.Linear`` itself are chosen, because a subclass may override ``forward``. If a name in ``ignore``
    matches no layer or module, this function warns.

    Args:
        module: The module to search. It is not changed.
        precision: The precision. Errors and warnings contain its name.
        converted: The classes of layers that are already converted.
        ignore: Names of layers that are not chosen. The name of a module excludes all layers inside the module. Instead of a full dotted
            name, one or more consecutive components of the name can be given.
        multiples: Two numbers. ``in_features`` must be a multiple of the first number, and ``out_features`` must be a multiple of the
            second number.

    Raises:
        UnsupportedError: If the module has parameters, but contains no layer that can be converted and no layer that is already converted.
    """
    import torch

    layers = dict(module.named_modules())
    unknown = [one for one in ignore if not any(is_ignored(name, [one]) for name in layers)]
    if unknown:
        warnings.warn(
            f"{precision.name} has the option to ignore {', '.join(unknown)}, but {type(module).__name__} has no layer of that name",
            stacklevel=5,
        )
    found: dict[str, torch.nn.Linear] = {}
    reasons = []
    for name, layer in layers.items():
        if not isinstance(layer, torch.nn.Linear):
            continue
        shown = name or "it"
        if is_ignored(name, ignore):
            reasons.append(f"{shown} is ignored by an option")
        elif type(layer) is not torch.nn.Linear:
            reasons.append(f"{shown} is a subclass of Linear ({type(layer).__name__})")
        elif layer.in_features % multiples[0] or layer.out_features % multiples[1]:
            reasons.append(
                f"{shown} has the size {layer.in_features} x {layer.out_features}, not a multiple of {multiples[0]} x {multiples[1]}"
            )
        else:
            found[name] = layer
    is_done = any(isinstance(layer, converted) for layer in layers.values())
    if not found and not is_done and any(True for _ in module.parameters()):
        raise UnsupportedError(
            f"no layer of {type(module).__name__} can use precision {precision.name!r}",
            plugin=precision.plugin,
            why="; ".join(reasons[:5]) + ("; ..." if len(reasons) > 5 else "") if reasons else "it has no torch.nn.Linear",
            hint="use precision='bf16-mixed', or combine it with a module that has such layers in one torch.nn.ModuleDict",
        )
    return found


def is_ignored(name: str, ignore: Collection[str]) -> bool:
    """Return whether the option ``ignore`` of a precision selects the layer with this name, or a module that contains the layer."""
    return any(f".{part}." in f".{name}." for part in ignore)
