"""Calls that must ignore some of the values that they are given, such as NaN in an addend that is multiplied by ``beta=0``, and calls that
must not ignore them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_calls
from accelkit_conformance.oracle.differentiable import random_inputs

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Calls = dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]


def _nan(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, complex("nan+nanj") if dtype.is_complex else float("nan"), dtype=dtype)


def _without_addend(dtype: torch.dtype) -> _Calls:
    """Return calls to functions such as ``addmm`` with an addend of NaN and ``beta=0``. The inner dimension has size 4 or 0."""
    calls: _Calls = {}
    a, b, c = (one.to(dtype) for one in random_inputs((2, 3, 4), (2, 4, 5), (4,)))
    for terms in (4, 0):
        a, b, c = a[..., :terms], b[:, :terms], c[:terms]
        for alpha in (1, 2, 0):
            how = f"alpha={alpha}, {terms} terms"
            options = {"beta": 0, "alpha": alpha}
            calls |= {
                f"addmm, {how}": (lambda x, a, b, o=options: torch.addmm(x, a, b, **o), (_nan(3, 5, dtype=dtype), a[0], b[0])),
                f"addmm of a row, {how}": (lambda x, a, b, o=options: torch.addmm(x, a, b, **o), (_nan(5, dtype=dtype), a[0], b[0])),
                f"addmv, {how}": (lambda x, a, c, o=options: torch.addmv(x, a, c, **o), (_nan(3, dtype=dtype), a[0], c)),
                f"baddbmm, {how}": (lambda x, a, b, o=options: torch.baddbmm(x, a, b, **o), (_nan(2, 3, 5, dtype=dtype), a, b)),
                f"baddbmm of one, {how}": (lambda x, a, b, o=options: torch.baddbmm(x, a, b, **o), (_nan(1, 1, 1, dtype=dtype), a, b)),
                f"addbmm, {how}": (lambda x, a, b, o=options: torch.addbmm(x, a, b, **o), (_nan(3, 5, dtype=dtype), a, b)),
            }
    x, y = random_inputs((3,), (5,))
    calls["addr"] = lambda n, x, y: torch.addr(n, x, y, beta=0), (_nan(3, 5, dtype=dtype), x.to(dtype), y.to(dtype))
    return calls


def _without_terms(dtype: torch.dtype) -> _Calls:
    """Return calls that compute products with an inner dimension of length 0. The results have many elements, all zero. In some calls, the
    result is written into a tensor of NaN.
    """
    calls: _Calls = {}
    for length in (5, 70_001):
        none = {
            "mm": (torch.mm, (3, 0), (0, length)),
            "bmm": (torch.bmm, (3, 1, 0), (3, 0, length)),
            "mv": (torch.mv, (length, 0), (0,)),
            "matmul": (torch.matmul, (2, 3, 0), (0, length)),
        }
        for name, (product, *shapes) in none.items():
            given = tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)
            calls[f"{name}, {length} columns"] = product, given
            out = _nan(*product(*given).shape, dtype=dtype)
            calls[f"{name}, {length} columns, out="] = lambda out, x, y, product=product: product(x, y, out=out), (out, *given)
        x, y = torch.zeros(3, 0, dtype=dtype), torch.zeros(0, length, dtype=dtype)
        bias, addend = torch.ones(length, dtype=dtype), _nan(3, length, dtype=dtype)
        calls |= {
            f"linear, {length} columns": (lambda b, x, y: F.linear(x, y.t(), b), (bias, x, y)),
            f"einsum, {length} columns": (lambda x, y: torch.einsum("ik,kj->ij", x, y), (x, y)),
            f"addmm, {length} columns": (lambda n, x, y: torch.addmm(n, x, y, beta=0), (addend, x, y)),
            f"addmm, {length} columns, out=": (lambda n, x, y: torch.addmm(n[0], x, y, beta=0, out=n.clone()), (addend, x, y)),
            f"baddbmm, {length} columns": (lambda n, x, y: torch.baddbmm(n[None], x[None], y[None], beta=0), (addend, x, y)),
        }
    return calls


def _not_chosen() -> _Calls:
    """Return calls that leave out or overwrite some elements of their arguments. Most of these elements are NaN."""
    mask = torch.tensor([True, False, True, False])
    x, holes, index = torch.arange(1.0, 5), torch.where(mask, torch.arange(1.0, 5), float("nan")), torch.tensor([0, 2])
    rows = torch.stack([holes, x])
    return {
        "where": (torch.where, (mask, holes, x)),
        "where with the mask inverted": (lambda m, x, y: torch.where(~m, x, y), (mask, x, holes)),
        "masked_fill": (lambda m, x: x.masked_fill(~m, 0.0), (mask, holes)),
        "masked_select": (lambda m, x: x.masked_select(m), (mask, holes)),
        "masked_scatter": (lambda m, x, y: x.masked_scatter(~m, y), (mask, holes, x)),
        "index_select": (lambda x, i: x.index_select(0, i), (holes, index)),
        "index_fill": (lambda x, i: x.index_fill(0, i, 7.0), (_nan(4), index)),
        "index_copy": (lambda x, i, y: x.index_copy(0, i, y), (torch.where(mask, float("nan"), x), index, x[:2])),
        "scatter": (lambda x, i, y: x.scatter(0, i, y), (_nan(4), index, x)),
        "scatter_reduce": (
            lambda x, i, y: torch.stack(
                [x.scatter_reduce(0, i, y, how, include_self=False) for how in ("sum", "prod", "mean", "amax", "amin")]
            ),
            (_nan(4), torch.tensor([0, 2, 2, 0]), x),
        ),
        "index_reduce": (
            lambda x, i, y: torch.stack([x.index_reduce(0, i, y, how, include_self=False) for how in ("prod", "mean", "amax", "amin")]),
            (_nan(4), torch.tensor([0, 2, 2, 0]), x),
        ),
        "tril": (lambda x: x.tril(), (torch.ones(3, 3).tril() + _nan(3, 3).triu(1),)),
        "triu": (lambda x: x.triu(1), (torch.ones(3, 3).triu(1) + _nan(3, 3).tril(),)),
        "nansum": (lambda x: x.nansum(1), (rows,)),
        "nanmean": (lambda x: x.nanmean(1), (rows,)),
        "nanmedian": (lambda x: x.nanmedian(), (rows,)),
        "negative padding": (lambda x: F.pad(x, (0, -1)), (holes,)),
        "embedding": (lambda i, x: F.embedding(i, x.view(4, 1)), (index, holes)),
        "embedding_bag": (lambda i, x: F.embedding_bag(i.view(1, 2), x.view(4, 1), mode="sum"), (index, holes)),
        "fill_": (lambda x: x.clone().fill_(2.0), (_nan(4),)),
        "zero_": (lambda x: x.clone().zero_(), (_nan(4),)),
        "copy_": (lambda x, y: x.clone().copy_(y), (_nan(4), x)),
        "nan_to_num_": (lambda x: x.clone().nan_to_num_(3.0), (holes,)),
        "dropout with p=1": (lambda x: F.dropout(x, 1.0, training=True), (x,)),
        "nll_loss with ignore_index": (
            lambda x, t: F.nll_loss(x, t, ignore_index=1),
            (torch.tensor([[1.0, 2], [float("nan"), 3]]), index // 2),
        ),
        "batch_norm in training with running statistics of NaN": (
            lambda x, m, v: F.batch_norm(x, m.clone(), v.clone(), training=True, momentum=1.0),
            (random_inputs((4, 3))[0], _nan(3), _nan(3)),
        ),
    }


def _multiplied_by_zero() -> _Calls:
    """Return calls with a factor of 0 and another factor that is NaN or infinite. The product is NaN, which must not be ignored."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 2.0])
    x, zeros = torch.ones(4), torch.zeros(4)
    return {
        "mul by zeros": (lambda y, zeros: (y * zeros, zeros * y), (special, zeros)),
        "mul by the number 0": (lambda y: (y * 0, y * 0.0, y.clone().mul_(0)), (special,)),
        **{
            f"{name} with value={value}, special values in tensor {place}": (
                lambda *given, name=name, value=value: getattr(torch, name)(*given, value=value),
                (x, *((special, x + 1) if place == 1 else (x, special) if name == "addcmul" else (x, zeros))),
            )
            for name in ("addcmul", "addcdiv")
            for value in (0, 0.0)
            for place in (1, 2)
        },
    }


IGNORED: dict[str, Callable[[], _Calls]] = {
    "addend": lambda: _without_addend(torch.float32),
    "bfloat16_addend": lambda: _without_addend(torch.bfloat16),
    "float16_addend": lambda: _without_addend(torch.float16),
    "complex_addend": lambda: _without_addend(torch.complex64),
    "no_terms": lambda: _without_terms(torch.float32),
    "bfloat16_no_terms": lambda: _without_terms(torch.bfloat16),
    "not_selected": _not_chosen,
    "factor_zero": _multiplied_by_zero,
}
"""Functions by name. Each returns calls, by description."""


def check_ignored_values(subject: Subject, name: str) -> None:
    """Make the calls that ``IGNORED[name]()`` returns, and compare the results on the device with those on the CPU. Differences are
    recorded in the subject."""
    compare_calls(subject, name, IGNORED[name]())
