"""Moving parameters to a device of another type without replacing the Parameter objects.

``fully_shard`` moves a module to another device by assigning a tensor on that device to the ``data`` of each parameter. Between the CPU
and CUDA, this assignment replaces the parameter's content. Between the CPU and an out-of-tree device, the assignment raises an error
("incompatible tensor type"). ``Module.to`` raises no error in this case, but creates new Parameters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class SwappingParameters(TorchFunctionMode):
    """A mode in which ``tensor.data = other`` also works between device types for which torch does not support this assignment.

    ``torch.utils.swap_tensors`` replaces the content of ``tensor``. ``tensor`` remains the same object, so tied parameters stay tied.
    """

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


@contextlib.contextmanager
def keeping_parameters() -> Iterator[None]:
    """Inside the ``with`` block, make ``Module.to`` keep the Parameter objects of a module.

    Otherwise, ``Module.to`` would create new Parameters on some devices: optimizers would continue to train the old Parameters, and tied
    parameters would no longer be tied.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
