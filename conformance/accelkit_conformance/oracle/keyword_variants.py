"""Variants of the calls in ``keyword_values``: with special values, with tensors of other dtypes, with empty tensors, or with numbers
near 1."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.keyword_values import STAGES, calls
from accelkit_conformance.oracle.known_differences import may_be_missing
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Variant = tuple[str, list[torch.Tensor]]
_SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, 1e-30)
_DTYPES = (torch.bfloat16, torch.complex64, torch.float16, torch.int64, torch.float64, torch.uint8, torch.int32, torch.bool, torch.int8)
_ORDINARY = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# PyTorch does not define the results of these calls for NaN and infinities. They convert such values to integers, sort or count them, or
# multiply them by zeros that other kernels may skip, such as padding, masked scores and interpolation weights. Kernels that limit the norm
# of a row (``max_norm``) can square 1e30 in float32, which overflows.
_UNDEFINED = re.compile(
    r"grid_sample|histc|bincount|bucketize|searchsorted|unique|isin|max_pool|embedding_bag|quantile|kthvalue|topk|median|conv|interpolate"
    r"|cdist|pdist|dtype=torch\.u?int|alpha=0(,|$)|attn_mask=\.\.\.|is_causal=True|max_norm=0"
)
# The CPU's kernels do not check these arguments when they are empty.
_UNCHECKED = re.compile(r"batch_norm|instance_norm|unique|histc|embedding_bag|multilabel|multi_margin")


def _with_special_values(number: int, title: str, given: Sequence[torch.Tensor]) -> Iterator[_Variant]:
    """Yield the tensors with a special value in some elements of one tensor: first NaN in the first floating-point tensor, then another
    special value in another tensor. Which tensor and which value this is depends on ``number``."""
    places = [place for place, one in enumerate(given) if one.is_floating_point() and one.numel()]
    if not places or _UNDEFINED.search(title):
        return
    for place, value in ((places[0], _SPECIAL[0]), (places[number % len(places)], _SPECIAL[1 + number % (len(_SPECIAL) - 1)])):
        changed = [one.clone() for one in given]
        flat = torch.arange(changed[place].numel()).view(changed[place].shape)
        changed[place][flat % 7 == number % min(7, flat.numel())] = torch.tensor(value).to(changed[place].dtype)
        yield f"{value} in tensor {place}", changed


def _in_other_dtypes(number: int, title: str, given: Sequence[torch.Tensor]) -> Iterator[_Variant]:
    """Yield the tensors with all floating-point tensors converted to another dtype, and then to a further one. Before they are converted to
    integers, they are multiplied by 4. Which dtypes these are depends on ``number``."""
    for step in (0, 1):
        dtype = _DTYPES[(number + step * 4) % len(_DTYPES)]
        factor = 1 if dtype.is_floating_point or dtype.is_complex else 4
        yield (
            str(dtype).removeprefix("torch."),
            [(one.abs() if dtype is torch.uint8 else one).mul(factor).to(dtype) if one.is_floating_point() else one for one in given],
        )


def _with_empty_tensors(number: int, title: str, given: Sequence[torch.Tensor]) -> Iterator[_Variant]:
    """Yield the tensors with one dimension of the first tensor shortened to length 0. In each other tensor, the dimension with the same
    index is also shortened to 0 if it has the same length. There are two variants. In the first, the dimension is dimension 0. In the
    second, it depends on ``number``, and its index counts from the last dimension (-1 is the last)."""
    first = given[0]
    if _UNCHECKED.search(title) or not first.ndim:
        return
    dim = number % first.ndim
    for place in (0, dim - first.ndim):
        length = first.shape[place]
        yield (
            f"dimension {place} empty",
            [one.narrow(place, 0, 0) if -one.ndim <= place < one.ndim and one.shape[place] == length else one for one in given],
        )


def _near_one(number: int, title: str, given: Sequence[torch.Tensor]) -> Iterator[_Variant]:
    """Yield the tensors with all floating-point numbers x replaced by 1 + x / 1000. Differences of such numbers lose three digits, and a
    variance that is computed as the difference of two means loses all."""
    yield "numbers near 1", [one * 1e-3 + 1 if one.is_floating_point() else one for one in given]


VARIANTS: Mapping[str, Callable[[int, str, Sequence[torch.Tensor]], Iterator[_Variant]]] = {
    "special_values": _with_special_values,
    "dtypes": _in_other_dtypes,
    "empty": _with_empty_tensors,
    "near_one": _near_one,
}
"""Functions by name. Each takes the number of a call, its description and its tensors, and yields descriptions and other tensors."""


def check_keyword_variants(subject: Subject, name: str, variant: str) -> None:
    """Make the calls of ``keyword_values.KEYWORDS[name]`` with other tensors, and compare the results with those on the CPU.

    Calls that the CPU rejects are left out, and so are calls that PyTorch itself implements only for the CPU if the device rejects them.
    Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the calls.
        variant: The name in ``VARIANTS`` of the function that returns the other tensors.
    """
    for number, (title, call, given) in enumerate(calls(name)):
        function = title.partition(" ")[0]
        for what, changed in VARIANTS[variant](number, title, given):
            with subject.sample(f"{title}, {what}", {"name": function}), _kernels_may_be_missing(function, changed):
                compare_call(subject, call, changed, num_stages=STAGES[name])


@contextlib.contextmanager
def _kernels_may_be_missing(function: str, given: Sequence[torch.Tensor]) -> Iterator[None]:
    """Context manager like ``may_be_missing``. If torch's ``op_db`` does not have the function, kernels may be missing for all dtypes
    except the ordinary floating-point dtypes.

    Raises:
        NotSupported: If a kernel may be missing, and the call raises NotImplementedError or RuntimeError.
    """
    operators = opdb.operators()
    op = next((operators[name] for name in (function, f"nn.functional.{function}", f"linalg.{function}") if name in operators), None)
    with may_be_missing(op, given):
        try:
            yield
        except (NotImplementedError, RuntimeError) as error:
            if op is not None or all(one.dtype in _ORDINARY for one in given):
                raise
            raise NotSupported(f"the device raises {type(error).__name__}: {error}") from error
