"""The precision's part of a forward pass: inputs converted, a context around, outputs converted."""

from __future__ import annotations

from typing import Any

import torch

from accelkit.errors import PrepareError
from accelkit.runtime.swapping import swap_class
from accelkit.specs.precision import Precision

_ATTRIBUTE = "_accelkit_precision"


def is_overridden(precision: Precision, method: str) -> bool:
    """Whether this precision's class does anything in ``method``."""
    return getattr(type(precision), method) is not getattr(Precision, method)


def acts_on_forward(precision: Precision) -> bool:
    """Whether a forward pass differs from the module's own."""
    return any(is_overridden(precision, method) for method in ("convert_input", "forward_context", "convert_output"))


def apply_to_forward(module: torch.nn.Module, precision: Precision) -> None:
    """Make every forward pass of ``module`` one in this precision, in place.

    Raises:
        PrepareError: If the module's ``forward`` was replaced on the instance, where a subclass's cannot reach.
    """
    target = getattr(module, "_orig_mod", module)  # torch.compile's wrapper calls the module inside, which it traces
    if "forward" in vars(target):
        raise PrepareError(
            f"{type(target).__name__} cannot be prepared for {precision.name}",
            why="its forward was replaced on the instance, so the precision would be bypassed",
            hint="override forward in a subclass, or use precision='32-true'",
        )
    target.__dict__[_ATTRIBUTE] = precision
    swap_class(target, forward_in_precision)


def forward_in_precision(cls: type) -> dict[str, Any]:
    """The behaviour of a module whose forward pass runs in its precision."""
    original: Any = cls

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        precision = self.__dict__[_ATTRIBUTE]
        args, kwargs = precision.convert_input(args), precision.convert_input(kwargs)
        with precision.forward_context():
            result = original.forward(self, *args, **kwargs)
        return precision.convert_output(result)

    return {"forward": forward}
