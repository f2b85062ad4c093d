"""The operators on autocast's lists, and a check that compares their results under autocast with the results on the CPU.

The lists are those that torch uses for devices such as CUDA (``AT_FORALL_LOWER_PRECISION_FP``, ``AT_FORALL_FP32``,
``AT_FORALL_FP32_SET_OPT_DTYPE`` and ``AT_FORALL_PROMOTE`` in torch's ``ATen/autocast_mode.h``). Each operator is listed under its name in
torch's ``op_db``. The lists that torch uses for the CPU are shorter.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import possible_samples
from accelkit_conformance.oracle.op_compare import compare_backward, compare_forward
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.results import Absent, WrongDtype

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SAMPLES = 8

LOWER_EVERYWHERE = (
    "addbmm", "addmm", "baddbmm", "bmm", "matmul", "mm", "linalg.vecdot", "nn.functional.linear", "nn.functional.prelu",
    *(f"nn.functional.conv{kind}{ndim}d" for kind in ("", "_transpose") for ndim in (1, 2, 3)),
    "nn.functional.scaled_dot_product_attention",
)  # fmt: skip
"""Operators that are computed in the autocast dtype on every device, including the CPU."""

LOWER = ("addmv", "addr", "einsum", "linalg.multi_dot", "mv")
"""Further operators that are computed in the autocast dtype on devices such as CUDA, but not on the CPU."""

FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2", "logsumexp", "pow", "reciprocal", "rsqrt",
    "sinh", "tan", "softmax", "log_softmax", "cumprod", "cumsum", "prod", "sum", "renorm", "dist", "cdist", "linalg.vector_norm", "norm",
    "native_layer_norm",
    *(f"nn.functional.{name}" for name in (
        "binary_cross_entropy_with_logits", "cosine_similarity", "group_norm", "kl_div", "layer_norm", "pdist", "softplus",
    )),
    *(f"nn.functional.interpolate.{name}" for name in ("bicubic", "bilinear", "linear", "nearest", "nearest-exact", "trilinear")),
    *(f"nn.functional.{name}_loss" for name in (
        "cosine_embedding", "hinge_embedding", "huber", "l1", "margin_ranking", "mse", "multi_margin", "multilabel_margin", "nll",
        "poisson_nll", "smooth_l1", "soft_margin", "triplet_margin",
    )),
)  # fmt: skip
"""Operators that autocast computes in float32, even if their arguments have the autocast dtype.

``linalg.matrix_norm``, on which ``norm`` for matrices relies, is on torch's list too, but torch refuses arguments in bfloat16 and float16
before autocast can cast them.
"""

PROMOTED = (
    "addcdiv", "addcmul", "atan2", "cross", "dot", "vdot", "index_put", "scatter_add", "tensordot", "nn.functional.bilinear",
    "nn.functional.grid_sample",
)  # fmt: skip
"""Operators that autocast computes in the widest dtype of their arguments."""


def check_listed(subject: Subject, name: str, dtype: str) -> None:
    """Compare the results of an operator under autocast on the device with its results on the CPU.

    On the CPU, the arguments are cast to the dtype that autocast's lists prescribe, and the operator is called without autocast. For a few
    samples of torch's ``op_db``, the results and the gradients of all floating-point arguments are compared. If the operator is in
    ``LOWER_EVERYWHERE`` or ``LOWER``, it is called once more after autocast has ended.

    Failures are recorded in the subject. If a result has the wrong dtype, and this dtype is float32 or ``dtype``, the failure is recorded
    as ``Absent``: each floating-point argument has one of these dtypes, so autocast probably has no effect on the operator.

    Args:
        subject: The plugin under test, with its device.
        name: The operator, from one of the lists of this module.
        dtype: The autocast dtype: ``bfloat16`` or ``float16``.
    """
    lower = opdb.dtype_of(dtype)
    is_lower = name in LOWER_EVERYWHERE or name in LOWER
    computed = lower if is_lower else torch.float32
    op = opdb.operators()[name]

    def on_device(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(subject.accelerator.autocast_device_type, dtype=lower):
            return op(*args, **kwargs)

    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, functools.partial(_cast, dtype=computed), (args, kwargs))
        return op(*args, **kwargs)

    def given_to(sample: Any) -> Any:
        given = (sample.input, sample.args, sample.kwargs)
        return given if is_lower else _lowered(given, lower, only_first=name in PROMOTED)

    samples = possible_samples(subject, op, opdb.samples(op, "float32", _SAMPLES, requires_grad=op.supports_autograd))
    for sample in subject.crashing_last(samples, lambda one: facts_of(given_to(one), dtype)):
        given = given_to(sample)
        with subject.sample(describe_sample(given), facts_of(given, dtype)):
            try:
                compare_forward(subject, op, given, on_device, on_cpu)
            except WrongDtype as error:
                if error.found not in (lower, torch.float32):
                    raise
                raise Absent(str(error)) from error  # autocast has no effect on this operator
            if op.supports_autograd:
                compare_backward(subject, op, sample, given, variant=on_device, expected=on_cpu, compared=lower)
            if is_lower:
                compare_forward(subject, op, given)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast a floating-point tensor to ``dtype``. A float64 tensor is rounded to ``dtype`` but stays in float64."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.to(dtype).double() if tensor.dtype is torch.float64 else tensor.to(dtype)


def _lowered(given: Any, dtype: torch.dtype, *, only_first: bool) -> Any:
    """Return the arguments with their floating-point tensors cast to ``dtype``. If ``only_first``, only the first such tensor is cast."""
    first = next((one for one in tensors(given) if one.is_floating_point()), None)

    def lower(one: torch.Tensor) -> torch.Tensor:
        if not one.is_floating_point() or (only_first and one is not first):
            return one
        return one.detach().to(dtype).requires_grad_(one.requires_grad)

    return tree_map_only(torch.Tensor, lower, given)
