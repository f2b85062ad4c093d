"""Dispatcher coverage: which of the required ATen overloads were called on the device.

Apart from the exceptions below, an overload is required if torch registers a separate CPU kernel for it. An overload without a separate
kernel is not required, because torch computes it by calling overloads that have separate kernels. The following overloads have a separate
CPU kernel, but are not required: overloads that torch decomposes on devices other than the CPU, overloads for special formats (quantized,
sparse, nested, MKL-DNN), the CPU's own implementations of convolution and attention, ``from_file``, ``_make_dep_token``, and operators that
exist only for torch's own tests.
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
    """Return the names of the overloads that a device must support for the installed torch, such as ``aten::add.Tensor``."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return sorted(
        name for name in names if has(name, "CPU") and not has(name, "CompositeImplicitAutograd") and not _OWN_FORMATS.search(name)
    )


class DispatchRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A ``TorchDispatchMode`` that records the name of every overload that takes or returns a tensor on the device."""

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
        """Return, in alphabetical order, the names that were first recorded after the previous call to this method."""
        new = self._seen - self._told
        self._told |= new
        return tuple(sorted(new))

    def _is_here(self, nested: Any) -> bool:
        return any(isinstance(leaf, torch.Tensor) and leaf.device.type == self._device_type for leaf in tree_leaves(nested))
