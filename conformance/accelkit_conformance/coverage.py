"""Dispatcher coverage: which ATen overloads that a device must serve were really seen on it.

What a device must serve are the overloads for which torch registers a kernel of the CPU's own: everything else torch composes of them.
Left out are those of formats that are devices' own matter (quantized, sparse, nested, MKL-DNN), the CPU's own ways to convolve and
attend, and what torch has for its tests.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_OWN_FORMATS = re.compile(
    r"quant|mkldnn|sparse|fbgemm|nested|to_padded|xnnpack|_coo|_csr|_csc|_bsr|_bsc|int4|int8pack|_fused_moving_avg|_make_per_|_fake_|mkl_"
    r"|spdiags|sspaddmm|jagged|slow_conv|_for_cpu|_test_|_foobar|_dep_token|from_file|_sdp_choice"
)


def required() -> list[str]:
    """The overloads that a device must serve, for the installed torch: ``aten::add.Tensor``."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return sorted(
        name for name in names if has(name, "CPU") and not has(name, "CompositeImplicitAutograd") and not _OWN_FORMATS.search(name)
    )


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, keeps the name of every overload that a tensor of the device goes into or comes out of."""

    def __init__(self, device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type
        self._seen: set[str] = set()
        self._told: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name()
        if name not in self._seen and self._is_here((args, kwargs, result)):
            self._seen.add(name)
        return result

    def news(self) -> tuple[str, ...]:
        """What was seen since this was asked last."""
        new = self._seen - self._told
        self._told |= new
        return tuple(sorted(new))

    def _is_here(self, nested: Any) -> bool:
        return any(isinstance(leaf, torch.Tensor) and leaf.device.type == self._device_type for leaf in tree_leaves(nested))
