"""Programs that reproduce a failure, to be run on the machine with the device."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch

from accelkit import Accelerator
from accelkit.runtime.comparison.cotangents import cotangents
from accelkit.runtime.comparison.reproducer import source_of_numbers

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SMALL = 64


def facts_of(given: Any, dtype: str) -> dict[str, Any]:
    """Return variables that describe an input: ``shape``, ``ndim``, ``args``, ``kwargs``, ``dtype`` and ``input``.

    An expected failure may select inputs with an expression that uses these variables (``Expectation.sample``).
    """
    first = given[0]
    shape = tuple(first.shape) if isinstance(first, torch.Tensor) else ()
    return {"shape": shape, "ndim": len(shape), "args": given[1], "kwargs": given[2], "dtype": dtype, "input": first}


def describe_sample(given: Any) -> str:
    """Return a description of a sample, which is a tuple (input, args, kwargs), in one line of at most 300 characters."""
    first, args, kwargs = given
    parts = [_short(first), *map(_short, args), *(f"{name}={_short(value)}" for name, value in kwargs.items())]
    return f"({', '.join(parts)})"[:300]


def program(subject: Subject, name: str, given: Any, *, dtype: str, number: str = "", is_backward: bool = False) -> str:
    """Return a program that runs the failing sample of an operator on the CPU and on the device, and prints both results.

    The program contains the sample itself if the sample is small or ``number`` is empty. Otherwise, the program selects the sample with the
    index ``number`` from the operator's ``sample_inputs``. If ``is_backward`` is True, the program prints the gradients instead of the
    results. The program does not use accelkit, unless the accelerator overrides ``load``.
    """
    literal = _literal(given, _SMALL if number else math.inf)
    head = [
        "import torch",
        *_imports_of_device(subject),
        "from torch.testing._internal.common_methods_invocations import op_db",
        f"op = next(op for op in op_db if f'{{op.name}}.{{op.variant_test_name}}'.rstrip('.') == {name!r})",
    ]
    if literal is not None:
        body = [f"given = {literal}", "args, kwargs = (given[0], *given[1]), given[2]"]
    else:
        body = [
            "torch.manual_seed(0)",
            f"sample = list(op.sample_inputs('cpu', torch.{dtype}))[{number}]  # {describe_sample(given)}",
            "args, kwargs = (sample.input, *sample.args), sample.kwargs",
        ]
    device = str(subject.device)
    body += [
        "from torch.utils._pytree import tree_map",
        f"there = tree_map(lambda leaf: leaf.to({device!r}) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs))",
    ]
    if is_backward:
        body += [
            "import zlib",
            "from collections.abc import Sequence",
            inspect.getsource(cotangents),
            "def gradients(args, kwargs):",
            "    leaves = [a.requires_grad_() for a in args if isinstance(a, torch.Tensor) and (a.is_floating_point() or a.is_complex())]",
            "    results = torch.utils._pytree.tree_leaves(op(*args, **kwargs))",
            "    outputs = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]",
            f"    return torch.autograd.grad(outputs, leaves, cotangents(outputs, {f'{name}[{number}]'!r}), allow_unused=True)",
            "print('cpu   ', gradients(args, kwargs))",
            "print('device', gradients(*there))",
        ]
    else:
        body += ["print('cpu   ', op(*args, **kwargs))", "print('device', op(*there[0], **there[1]))"]
    return "\n".join([*head, *body]) + "\n"


def _imports_of_device(subject: Subject) -> list[str]:
    """Return a list with the import line that registers the device with torch, or an empty list if torch itself supports the device.

    The line uses accelkit only if the accelerator overrides ``load``.
    """
    accelerator = subject.accelerator
    if type(accelerator).load is not Accelerator.load:
        return [f"import accelkit; accelkit.select({subject.record.name!r}).accelerator.load()"]
    return [f"import {accelerator.torch_package}"] if accelerator.torch_package else []


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        contiguous = (
            ""
            if value.layout is torch.strided and value.is_contiguous()
            else f", strides {value.stride()}"
            if value.layout is torch.strided
            else f", {value.layout}"
        )
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{contiguous}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_short, value))}]"
    return repr(value)[:60]


def _literal(value: Any, max_elements: float) -> str | None:
    """Return the Python source of a sample, or of a value in it.

    Return None if a tensor has more than ``max_elements`` elements, is not strided and contiguous, or has its conjugate or negative bit
    set. Also return None if any other value cannot be written as source.
    """
    if isinstance(value, torch.Tensor):
        is_plain = value.layout is torch.strided and value.is_contiguous() and not value.is_conj() and not value.is_neg()
        if not is_plain or value.numel() > max_elements:
            return None
        text = source_of_numbers(value.detach().tolist())
        return (
            f"torch.tensor({text}, dtype={value.dtype})"
            if value.numel() or value.ndim == 1
            else f"torch.empty({list(value.shape)}, dtype={value.dtype})"
        )
    if isinstance(value, tuple | list):
        parts = [_literal(one, max_elements) for one in value]
        if None in parts:
            return None
        inside = ", ".join(map(str, parts))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if value else "()"
    if isinstance(value, dict):
        items = {key: _literal(one, max_elements) for key, one in value.items()}
        return None if None in items.values() else "{" + ", ".join(f"{key!r}: {one}" for key, one in items.items()) + "}"
    if isinstance(value, torch.dtype) or value is None or isinstance(value, bool | int | float | str | complex):
        return source_of_numbers(value)
    return None
