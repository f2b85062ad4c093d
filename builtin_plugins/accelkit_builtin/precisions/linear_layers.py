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

    Only layers of the class ``torch.nn.Linear`` itself are chosen, because subclasses compute something else. Warns about names in
    ``ignore`` that match nothing.

    Args:
        module: The module to search. It is not changed.
        precision: The precision, for errors and warnings.
        converted: Classes of layers that were converted before.
        ignore: Layers that are not chosen. Each is given by its name within ``module``, by the name of a module that contains it, or by
            consecutive parts of such a name.
        multiples: The numbers of which ``in_features`` and ``out_features`` must be multiples.

    Raises:
        UnsupportedError: If the module has parameters, but no layer that can be converted or was converted before.
    """
    import torch

    layers = dict(module.named_modules())
    unknown = [one for one in ignore if not any(_is_part(one, name) for name in layers)]
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
        if any(_is_part(one, name) for one in ignore):
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


def _is_part(part: str, name: str) -> bool:
    return f".{part}." in f".{name}."
