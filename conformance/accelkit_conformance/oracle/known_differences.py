"""Differences between PyTorch's kernels for the CPU and for CUDA. These differences are not defects, and are accepted on every device."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.results import NotSupported

# Calls whose kernels assume, without checking, that their arguments are laid out in memory as in the calls that torch itself makes.
LAID_OUT_BY_TORCH = re.compile(r"_weight_norm_interface|_embedding_bag|_scaled_mm|_native_multi_head_attention")
# Calls that may add up terms one after another. The recorded values repeat, so their rounding errors do not average out.
SEQUENTIAL = re.compile(r"^cum|nll_loss")
# Operators that return values for their own backward pass, or results that were not asked for. Some devices leave such results empty, or
# give them a different dtype.
_AUXILIARY = re.compile(r"batch_norm(?!.*backward)|log_sigmoid_forward|^_?unique|_embedding_bag(?!.*backward)")
# Operators and ATen overloads that PyTorch itself implements only for the CPU, although its database does not say so. channel_shuffle has
# a composite for other devices, which accepts only contiguous arguments.
_ONLY_ON_CPU = ("_add_relu.Tensor", "_add_relu.Scalar", "sparse.mm.reduce", "nn.functional.channel_shuffle", "channel_shuffle")

# Subclasses of RuntimeError that never mean that a kernel is missing.
_NEVER_ABOUT_KERNELS = (torch.OutOfMemoryError, torch.AcceleratorError, RecursionError)


def is_left_out(name: str, index: int, mine: Any, theirs: Any) -> bool:
    """Return whether a result is left out of the comparison.

    An auxiliary result, such as a value that an operator saves for its backward pass, is left out if the tensors of the device and the
    CPU differ in dtype, or if they differ in shape and at least one of them is empty.

    Args:
        name: The name of the operator in torch's ``op_db`` or in ATen.
        index: The index of the result; the first result is never auxiliary.
        mine, theirs: The device's result and the CPU's.
    """
    if not index or not _AUXILIARY.search(name) or not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return False
    return mine.dtype != theirs.dtype or (mine.shape != theirs.shape and 0 in (mine.numel(), theirs.numel()))


def are_as_frequent(values: torch.Tensor, found: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether two results of ``torch.mode`` are equally correct.

    ``torch.mode`` may return any of the most frequent values. ``found`` is the device's result for the input ``values``, and
    ``reference`` is the CPU's result. The results are equally correct if, along at least one dimension of ``values``, each element of
    ``found`` occurs as often as the element of ``reference`` at the same position. The results have the same shape, with or without the
    reduced dimension (``keepdim``). All tensors are on the CPU.
    """
    for dim in range(values.ndim):
        shape = [*values.shape[:dim], 1, *values.shape[dim + 1 :]]
        if found.numel() == math.prod(shape) and found.shape in (tuple(shape), (*shape[:dim], *shape[dim + 1 :])):
            counts = [(values == one.reshape(shape)).sum(dim) for one in (found, reference)]
            if torch.equal(*counts):
                return True
    return False


@contextlib.contextmanager
def may_be_missing(op: Any, given: Any, overload: str = "") -> Iterator[None]:
    """Context manager that converts an error of a call on the device to NotSupported if PyTorch implements the call only for the CPU.

    PyTorch's ``op_db`` lists the dtypes of each operator for the CPU and for CUDA. ``_ONLY_ON_CPU`` lists further operators that PyTorch
    implements only for the CPU.

    Args:
        op: The OpInfo of the operator, or None.
        given: The arguments of the call.
        overload: The name of the ATen overload that is called. Empty if no overload is called directly.

    Raises:
        NotSupported: If the call raises NotImplementedError or RuntimeError, and PyTorch has no CUDA kernel for the operator or for a
            dtype of the arguments. The texts of errors about missing kernels differ between devices, so the text does not matter. Errors
            that ``_NEVER_ABOUT_KERNELS`` lists are not changed.
    """
    try:
        yield
    except _NEVER_ABOUT_KERNELS:
        raise
    except (NotImplementedError, RuntimeError) as error:
        if not {_full_name(op), overload} & {*_ONLY_ON_CPU} and not _is_only_for_cpu(op, {one.dtype for one in tensors(given)}):
            raise
        reason = str(error).partition("\n")[0]
        what = f"PyTorch itself implements this only for the CPU, and the device raises {type(error).__name__}"
        raise NotSupported(f"{what}: {reason}") from error


def _full_name(op: Any) -> str:
    return opdb.full_name(op) if op is not None else ""


def _is_only_for_cpu(op: Any, dtypes: set[torch.dtype]) -> bool:
    if not hasattr(op, "supported_dtypes"):  # a stand-in for an operator
        return False
    on_cpu, on_cuda = op.supported_dtypes("cpu"), set(op.supported_dtypes("cuda"))
    if torch.float16 in on_cuda:
        on_cuda.add(torch.bfloat16)  # some entries of the database list bfloat16 only on a machine with a GPU
    return not on_cuda or bool(dtypes & (on_cpu - on_cuda))
