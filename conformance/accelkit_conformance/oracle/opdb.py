"""torch's own database of operators, modules and optimizers. Private to torch: this is the only module that imports it.

``torch.testing._internal`` ships in torch's wheel and needs ``expecttest``; importing it takes two to three seconds.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from accelkit import UnsupportedError

_MOST = 400
# One device's own, which nothing else can run: CUDA's compiler, and the CPU's part of scaled_dot_product_attention.
_LEFT_OUT = ("jiterator", "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu")
# What these return is whatever was in memory.
UNINITIALIZED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_")
# Neither take tensors nor make them.
NO_TENSORS = ("broadcast_shapes",)
# ATen overloads whose results are memory as it was, or which kernel torch would choose.
UNPREDICTABLE = (
    "aten::empty_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::_fused_sdp_choice",
    "aten::_to_copy",
    "aten::_ctc_loss",
    "aten::_ctc_loss.Tensor",
)
# Vectors that are right up to their sign or phase.
UP_TO_PHASE = (
    "linalg.svd",
    "svd",
    "linalg.eig",
    "linalg.eigh",
    "linalg.qr",
    "qr",
    "geqrf",
    "svd_lowrank",
    "pca_lowrank",
    "linalg.householder_product",
)
# A step in the function: in low precision either side of it is right.
DISCONTINUOUS = ("floor_divide", "fmod", "remainder", "round", "floor", "ceil", "trunc", "frac", "div", "sign", "heaviside", "sgn")
# Which of several equal values is meant is the device's to choose.
CHOOSES_AMONG_EQUALS = (
    "sort", "argsort", "topk", "kthvalue", "mode", "median", "nanmedian", "max", "min", "argmax", "argmin", "msort", "cummax",
    "cummin", "unique",
)  # fmt: skip


@functools.cache
def operators() -> dict[str, Any]:
    """Every OpInfo by name; variants as ``name.variant``."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise UnsupportedError(
            "torch's database of operators cannot be imported", why=str(error), hint="pip install 'accelkit[conformance]'"
        ) from error
    found = {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name): op for op in op_db}
    return {name: op for name, op in sorted(found.items()) if not op.name.startswith(_LEFT_OUT)}


def dtype_of(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def supports(op: Any, dtype: str, *, backward: bool = False) -> bool:
    """Whether torch says that the CPU has the operator in this dtype."""
    has = op.supported_dtypes("cpu")
    if backward:
        return bool(op.supports_autograd and dtype_of(dtype) in op.supported_backward_dtypes("cpu"))
    return dtype_of(dtype) in has


def samples(op: Any, dtype: str, most: int, *, requires_grad: bool = False) -> Iterator[Any]:
    """Inputs on the CPU, the same ones every time: of more than ``most`` some at even distances, the first and the last among them.

    Each sample's ``name`` is its number among all.
    """
    torch.default_generator.manual_seed(0)
    every = list(itertools.islice(op.sample_inputs("cpu", dtype_of(dtype), requires_grad=requires_grad), _MOST))
    chosen = range(len(every)) if len(every) <= most else {round(place * (len(every) - 1) / max(1, most - 1)) for place in range(most)}
    for number in sorted(chosen):
        every[number].name = str(number)
        yield every[number]


def is_pointwise(op: Any) -> bool:
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    return isinstance(op, BinaryUfuncInfo | UnaryUfuncInfo)


def num_arguments(op: Any) -> int:
    """Of a pointwise operator: one or two tensors."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo

    return 2 if isinstance(op, BinaryUfuncInfo) else 1


@functools.cache
def modules() -> dict[str, Any]:
    """Every ModuleInfo by name, as ``Conv2d``. Lazy modules are left out: they have no parameters to move."""
    from torch.testing._internal.common_modules import module_db

    return {info.name.removeprefix("nn.").replace(".", "_"): info for info in module_db if not info.is_lazy}


def module_inputs(info: Any, *, training: bool) -> list[Any]:
    """How a module is made and called: ModuleInputs in float32 on the CPU, the same ones every time."""
    torch.default_generator.manual_seed(0)
    found: list[Any] = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    return found


@functools.cache
def optimizers() -> dict[str, Any]:
    """Every OptimizerInfo by name, as ``AdamW``."""
    from torch.testing._internal.common_optimizers import optim_db

    return {info.name: info for info in optim_db}


def optimizer_inputs(info: Any) -> list[Any]:
    """Configurations of an optimizer: ``kwargs`` and ``desc``."""
    found: list[Any] = info.optim_inputs_func(device="cpu")
    return found
