"""Calls that index, write into or multiply a tensor that has the conjugate or the negative bit set.

In a product, the tensor is a matrix or a vector. The calls have the same form as those in ``conjugate_calls``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.conjugate_calls import CPU, Call, assigned, mask, number, numbers, rows, view_like

INDEXING: dict[str, Call] = {
    "v[0]": lambda v: v[0],
    "v[..., 1]": lambda v: v[..., 1],
    "v[rows]": lambda v: v[rows(v)],
    "v[mask]": lambda v: v[mask(v)],
    "index_select": lambda v: v.index_select(0, rows(v)),
    "gather": lambda v: v.gather(0, rows(v)[:, None]),
    "take": lambda v: v.take(rows(v)),
    "masked_select": lambda v: v.masked_select(mask(v)),
    "v[0] = number": lambda v: assigned(v, 0, number(v)),
    "v[0] = row of the host": lambda v: assigned(v, 0, numbers(v[0], 2, CPU)),
    "v[0] = view": lambda v: assigned(v, 0, view_like(v[0])),
    "v[rows] = rows of a view": lambda v: assigned(v, rows(v), view_like(v)[rows(v)]),
    "v[mask] = number": lambda v: assigned(v, mask(v), number(v)),
    "v[mask] = view[mask]": lambda v: assigned(v, mask(v), view_like(v)[mask(v)]),
    "tensor[0] = v[1]": lambda v: assigned(numbers(v), 0, v[1]),
    "tensor[rows] = v[rows]": lambda v: assigned(numbers(v), rows(v), v[rows(v)]),
    "tensor[mask] = v[mask]": lambda v: assigned(numbers(v), mask(v), v[mask(v)]),
    "index_put_": lambda v: v.index_put_((rows(v),), view_like(v)[:2], accumulate=True),
    "index_add_": lambda v: v.index_add_(0, rows(v), view_like(v)[:2]),
    "index_copy_": lambda v: v.index_copy_(0, rows(v), view_like(v)[:2]),
    "index_fill_": lambda v: v.index_fill_(0, rows(v), number(v)),
    "scatter_": lambda v: v.scatter_(0, rows(v)[:, None], view_like(v)),
    "scatter_add_": lambda v: v.scatter_add_(0, rows(v)[:, None], view_like(v)),
    "masked_fill_": lambda v: v.masked_fill_(mask(v), number(v)),
    "masked_scatter_": lambda v: v.masked_scatter_(mask(v), view_like(v)),
}
WRITING: dict[str, Call] = {
    "fill_": lambda v: v.fill_(number(v)),
    "fill_ with a tensor": lambda v: v.fill_(torch.tensor(number(v), device=v.device)),
    "zero_": lambda v: v.zero_(),
    "add_": lambda v: v.add_(view_like(v), alpha=2),
    "add_ of a tensor": lambda v: v.add_(numbers(v, 2)),
    "sub_ of a number": lambda v: v.sub_(number(v)),
    "mul_": lambda v: v.mul_(view_like(v)),
    "mul_ by itself": lambda v: v.mul_(v),
    "mul_ by a number": lambda v: v.mul_(number(v)),
    "div_": lambda v: v.div_(2),
    "neg_": lambda v: v.neg_(),
    "conj_physical_": lambda v: v.conj_physical_(),
    "square_": lambda v: v.square_(),
    "addcmul_": lambda v: v.addcmul_(view_like(v), numbers(v)),
    "addmm_": lambda v: v.addmm_(view_like(v), numbers(v)),
    "real.add_": lambda v: v.real.add_(1),
    "imag.mul_": lambda v: v.imag.mul_(2),
    "imag.copy_": lambda v: v.imag.copy_(numbers(v).real),
    "diagonal().fill_": lambda v: v.diagonal().fill_(number(v)),
    **{f"{name}, out=": lambda v, name=name: getattr(torch, name)(view_like(v), numbers(v), out=v) for name in ("add", "mul", "sub", "mm")},
    "mv, out=": lambda v: torch.mv(view_like(v), numbers(v[0]), out=v[0]),
    "outer, out=": lambda v: torch.outer(view_like(v[0]), numbers(v[1]), out=v),
    "cat, out=": lambda v: torch.cat([view_like(v)[:1], numbers(v)[1:]], out=v),
    "conj_physical, out=": lambda v: torch.conj_physical(numbers(v), out=v),
    "neg, out=": lambda v: torch.neg(view_like(v), out=v),
    "sum, out=": lambda v: torch.sum(view_like(v), 0, out=v[0]),
    "index_select, out=": lambda v: torch.index_select(view_like(v), 0, rows(v), out=v[:2]),
    "addmm, out=": lambda v: torch.addmm(numbers(v), view_like(v), numbers(v), out=v),
}
_OF_TWO: dict[str, Callable[..., torch.Tensor]] = {
    "mm": torch.mm,
    "matmul of mH": lambda a, b: a.mH @ b,
    "bmm": lambda a, b: torch.bmm(a.expand(2, *a.shape), b[None].repeat(2, 1, 1)),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "dot": torch.dot,
    "vdot": torch.vdot,
    "inner": torch.inner,
    "outer": torch.outer,
    "linalg.vecdot": torch.linalg.vecdot,
    "linear": F.linear,
    "einsum": lambda a, b: torch.einsum("ij,jk->ki", a, b),
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "kron": torch.kron,
}
_OF_THREE: dict[str, Callable[..., torch.Tensor]] = {
    "addmm": lambda a, b, c: torch.addmm(a, b, c, beta=2, alpha=-1),
    "baddbmm": lambda a, b, c: torch.baddbmm(a[None], b[None], c[None]),
    "addbmm": lambda a, b, c: torch.addbmm(a, b[None], c[None]),
    "addmv": lambda a, b, c: torch.addmv(a[0], b, c[0]),
    "addr": lambda a, b, c: torch.addr(a, b[0], c[1]),
    "linear": lambda a, b, c: F.linear(a, b, c[0]),
    "linalg.multi_dot": lambda a, b, c: torch.linalg.multi_dot([a, b, c]),
}


def _product(function: Callable[..., Any], places: Sequence[str], v: torch.Tensor) -> Any:
    """Call ``function`` with ``v`` in each place ``view``, and with tensors that have neither bit set in the other places."""
    return function(*(v if place == "view" else numbers(v, start) for start, place in enumerate(places)))


PRODUCTS: dict[str, Call] = {
    f"{name}({', '.join(places)})": functools.partial(_product, function, places)
    for count, functions in ((2, _OF_TWO), (3, _OF_THREE))
    for name, function in functions.items()
    for places in itertools.product(("view", "tensor"), repeat=count)
    if "view" in places
}
