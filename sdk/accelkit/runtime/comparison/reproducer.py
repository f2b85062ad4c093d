"""Write a program that shows the wrong result of an operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from accelkit.runtime.comparison.operator_call import OperatorCall

_SMALL = 64
_PROGRAM = """\
# {comment}
import accelkit
import torch

device = accelkit.device({device})
inputs = {inputs}


def call(tensors, device):
    result = torch.ops.{overload}({arguments})
    return [result] if isinstance(result, torch.Tensor) else result


def wide(one):
    return one.to(torch.complex128 if one.is_complex() else torch.float64, copy=True)


right = call([wide(one) if one.is_floating_point() or one.is_complex() else one.clone() for one in inputs], torch.device("cpu"))
found = call([one.to(device, copy=True) for one in inputs], device)
for number, (t, x) in enumerate(zip(right, found)):
    print(f"result {{number}} on the CPU in float64:", t)
    print(f"result {{number}} on {{device}}:", x)
    print("largest difference:", (wide(x.cpu()) - wide(t)).abs().max().item())
"""


def write_program(call: OperatorCall, folder: Path, accelerator: str, device: torch.device, comment: str) -> tuple[str, Path]:
    """Save a program in ``folder``. The program runs the call on the CPU in float64 and on the device, and prints both results.

    Args:
        call: The call to the operator, with its arguments.
        folder: The folder. A program for an earlier call to the same overload is replaced.
        accelerator: The name of the accelerator.
        device: The device. Only its index is used.
        comment: The text of the program's first line, without ``#``.

    Returns:
        The program and its path. The program contains the inputs if they have at most 64 elements in all and a simple layout; otherwise,
        the inputs are in a ``.pt`` file in the same folder.
    """
    overload = str(call.operator)
    stem = overload.replace(".", "_")
    tensors: list[torch.Tensor] = []
    named = [f"{key}={_source(value, tensors)}" for key, value in call.given[1].items()]
    arguments = ", ".join([*(_source(value, tensors) for value in call.given[0]), *named])
    inputs = _literals(tensors)
    if inputs is None:
        torch.save([tensor.clone() for tensor in tensors], folder / f"{stem}.pt")
        inputs = f"torch.load({str((folder / f'{stem}.pt').absolute())!r})"
    program = _PROGRAM.format(
        comment=comment,
        inputs=inputs,
        overload=overload,
        arguments=arguments,
        device=f"{accelerator!r}" if device.index is None else f"{accelerator!r}, {device.index}",
    )
    path = folder / f"{stem}.py"
    path.write_text(program, "utf-8")
    return program, path


def _source(value: Any, tensors: list[torch.Tensor]) -> str:
    """Return an argument as Python source.

    The source of a tensor is ``tensors[index]``. A tensor that is not yet in the list ``tensors`` is appended to it.
    """
    if isinstance(value, torch.Tensor):
        known = next((index for index, one in enumerate(tensors) if one is value), len(tensors))
        tensors += [value] if known == len(tensors) else []
        return f"tensors[{known}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_source(one, tensors) for one in value)}]"
    if isinstance(value, torch.device):
        return "device"
    return source_of_numbers(value)


def source_of_numbers(value: Any) -> str:
    """Return a number, or a nested list of numbers, as Python source. Any other value is returned as its ``repr``."""
    if isinstance(value, list):
        return f"[{', '.join(map(source_of_numbers, value))}]"
    if isinstance(value, complex):
        return f"complex({source_of_numbers(value.real)}, {source_of_numbers(value.imag)})"
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _literals(tensors: Sequence[torch.Tensor]) -> str | None:
    """Return the tensors as Python source, or None if they cannot be written simply.

    The result is None if the tensors have more than 64 elements in all, or if one of them is empty. It is also None if a tensor is neither
    contiguous nor the transpose of a contiguous matrix.
    """
    if sum(tensor.numel() for tensor in tensors) > _SMALL or not all(tensor.numel() for tensor in tensors):
        return None
    is_transposed = [one.ndim == 2 and not one.is_contiguous() and one.t().is_contiguous() for one in tensors]
    if not all(one.is_contiguous() or turned for one, turned in zip(tensors, is_transposed, strict=True)):
        return None
    texts = (
        f"torch.tensor({source_of_numbers((one.t() if turned else one).tolist())}, dtype={one.dtype}){'.t()' if turned else ''}"
        for one, turned in zip(tensors, is_transposed, strict=True)
    )
    return f"[{', '.join(texts)}]"
