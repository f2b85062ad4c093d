"""Calls that read a tensor that has the conjugate or the negative bit set.

Each call takes a tensor on the device. Its results are tensors on the device, or Python values. All numbers are small integers, so that
there are no rounding errors.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import torch

from accelkit_conformance.profiles.operators import DTYPES

Call = Callable[[torch.Tensor], Any]
CPU = torch.device("cpu")


def numbers(like: torch.Tensor, start: int = 1, device: torch.device | None = None) -> torch.Tensor:
    """Return a tensor of small integers with the shape and dtype of ``like``, by default on the device of ``like``.

    Neither the conjugate bit nor the negative bit of the tensor is set.
    """
    real = ((torch.arange(like.numel()) * 5 + start) % 7 - 3).double()
    integers = torch.complex(real, (real * 3 + start) % 5 - 2) if like.is_complex() else real
    return integers.view(like.shape).to(like.dtype).to(device or like.device)


def view_like(like: torch.Tensor, start: int = 3, device: torch.device | None = None) -> torch.Tensor:
    """Return a tensor of small integers with the shape and dtype of ``like``, by default on the device of ``like``.

    If the tensor is complex, its conjugate bit is set. Otherwise, its negative bit is set.
    """
    integers = numbers(like, start, device)
    return integers.conj() if like.is_complex() else torch.complex(integers * 0, integers).conj().imag


def number(v: torch.Tensor) -> complex:
    """Return a complex number if the tensor is complex, and a real number otherwise."""
    return 2 - 3j if v.is_complex() else 3.0


def rows(v: torch.Tensor) -> torch.Tensor:
    """Return the indices of two rows."""
    return torch.tensor([1, 0], device=v.device)


def mask(v: torch.Tensor) -> torch.Tensor:
    """Return a mask that selects every third element."""
    return (torch.arange(v.numel()) % 3 == 0).view(v.shape).to(v.device)


def assigned(target: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    """Assign ``value`` to ``target[key]``, and return ``target``."""
    target[key] = value
    return target


def _saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def _parts(v: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(v.resolve_conj())


_FUNCTIONS = ("resolve_conj", "resolve_neg", "conj_physical", "conj", "adjoint", "clone", "positive", "neg", "real", "imag")
_METHODS = (*_FUNCTIONS[:-2], "contiguous", "detach", "t", "flatten")
RESOLVING: dict[str, Call] = {
    **{f"torch.{name}": lambda v, name=name: getattr(torch, name)(v) for name in _FUNCTIONS},
    **{name: lambda v, name=name: getattr(v, name)() for name in _METHODS},
    **{name: lambda v, name=name: getattr(v, name) for name in ("mH", "H", "mT", "real", "imag")},
    "resolve_neg().resolve_conj()": lambda v: v.resolve_neg().resolve_conj(),
    "view_as_real": _parts,
    "view_as_complex": lambda v: torch.view_as_complex(_parts(v)).conj(),
    "expand": lambda v: v.expand(2, *v.shape),
    "cat": lambda v: torch.cat([v, numbers(v), view_like(v)]),
    "where": lambda v: torch.where(mask(v), v, numbers(v)),
    "sum": lambda v: v.sum(),
    "arithmetic": lambda v: (v * view_like(v), v + numbers(v), numbers(v) - v, v.square(), v / 2),
    "mul by a number": lambda v: v * number(v),
}
READING: dict[str, Call] = {
    "cpu": lambda v: v.cpu().tolist(),
    "to('cpu')": lambda v: v.to("cpu", copy=True).tolist(),
    "cpu().to(device)": lambda v: v.cpu().to(v.device),
    "to(device)": lambda v: (v.to(v.device), v.to(v.device, copy=True)),
    "tolist": lambda v: v.tolist(),
    "item": lambda v: [one.item() for one in v.flatten()],
    "complex": lambda v: complex(v.flatten()[0]),
    "repr": lambda v: re.sub(r"\s|,\s*device='[^']*'", "", repr(v)),
    "numpy(force=True)": lambda v: v.numpy(force=True).tolist(),
    "clone().cpu().numpy()": lambda v: v.clone().cpu().resolve_conj().resolve_neg().numpy().tolist(),
    "resolve_conj().cpu().numpy()": lambda v: v.resolve_conj().resolve_neg().cpu().numpy().tolist(),
    "equal": lambda v: [torch.equal(v, one) for one in (v.clone(), v.resolve_conj().resolve_neg(), numbers(v))],
}
_TARGETS = [name for name in DTYPES if name != "uint8"]  # the conversion of a negative number to uint8 is undefined
CONVERTING: dict[str, Call] = {
    **{f"to({name})": lambda v, name=name: v.to(getattr(torch, name)) for name in _TARGETS},
    **{f"type({name})": lambda v, name=name: v.type(getattr(torch, name)) for name in _TARGETS},
    **{f"copy_ to {name}": lambda v, name=name: torch.zeros_like(v, dtype=getattr(torch, name)).copy_(v) for name in _TARGETS},
    **{
        f"copy_ from {name}": lambda v, name=name: v.copy_(numbers(v, 2).to(getattr(torch, name)))
        for name in ("float32", "int64", "complex64")
    },
}
COPYING: dict[str, Call] = {
    "copy_ from the host": lambda v: v.copy_(numbers(v, 2, CPU)),
    "copy_ from a view on the host": lambda v: v.copy_(view_like(v, 2, CPU)),
    "copy_ from the device": lambda v: v.copy_(numbers(v, 2)),
    "copy_ from a view on the device": lambda v: v.copy_(view_like(v, 2)),
    "copy_ of a number": lambda v: v.copy_(torch.tensor(number(v), device=v.device)),
    "copy_ to the host": lambda v: numbers(v, 2, CPU).copy_(v).tolist(),
    "copy_ to a view on the host": lambda v: view_like(v, 2, CPU).copy_(v).tolist(),
    "copy_ to the device": lambda v: numbers(v, 2).copy_(v),
    "copy_ to a view on the device": lambda v: view_like(v, 2).copy_(v),
    "copy_ to a transposed view": lambda v: view_like(v, 2).t().copy_(v),
}
SAVING: dict[str, Call] = {
    "torch.save": _saved,
    "torch.save, loaded on the host": lambda v: _saved({"v": v}, map_location="cpu")["v"].tolist(),
    "torch.save of a list": lambda v: _saved([v, v.clone(), v.resolve_conj().resolve_neg()]),
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),  # noqa: S301 -- data of this process
    "deepcopy": copy.deepcopy,
    "deepcopy of a dictionary": lambda v: copy.deepcopy({"v": v, "numbers": numbers(v)}),
    "copy.copy": copy.copy,
}
GRADIENTS: dict[str, Call] = {
    "resolve_conj": lambda v: v.resolve_conj(),
    "resolve_neg": lambda v: v.resolve_neg(),
    "conj_physical": lambda v: v.conj_physical(),
    "clone": lambda v: v.clone(),
    "mH": lambda v: v.mH,
    "real": lambda v: v.real * 2,
    "imag": lambda v: v.imag * 2,
    "view_as_real": _parts,
    "to(complex128)": lambda v: v.to(torch.complex128),
    "cpu().to(device)": lambda v: v.cpu().to(v.device),
    "matmul": lambda v: v @ numbers(v),
    "copy_": lambda v: view_like(v).copy_(v),
    "v[rows]": lambda v: v[rows(v)],
    "tensor[0] = v[1]": lambda v: assigned(numbers(v), 0, v[1]),
    "mul_ of a clone": lambda v: v.clone().mul_(number(v)),
}
