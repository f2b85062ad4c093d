"""Let ``tensor.data = other`` take a tensor of another device type, as torch's ``fully_shard`` writes when it moves a module to its mesh's.

Between the CPU and CUDA torch exchanges what a tensor holds; between the CPU and a device out of tree it refuses ("incompatible tensor
type").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class SwappingParameters(TorchFunctionMode):
    """Inside, an assignment to ``data`` that torch refuses swaps the two tensors instead. The object stays, and what is tied stays tied."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            if func != _SET_DATA or args[0].device.type == args[1].device.type:
                raise
        tensor, other = args[0], args[1].detach()
        if isinstance(tensor, torch.nn.Parameter):
            other = torch.nn.Parameter(other, requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, other)  # type: ignore[no-untyped-call]
        return None
