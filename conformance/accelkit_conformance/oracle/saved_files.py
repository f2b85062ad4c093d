"""Checks that tensors are saved to files and loaded from them correctly, and that copies of tensors are correct."""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SIZES = (1 << 20, (1 << 20) + 12, 5 << 20, (5 << 20) - 4)


def saved(thing: Any, **options: Any) -> io.BytesIO:
    """Write ``thing`` to a file in memory with ``torch.save``, and return the file, positioned at its start. ``options`` are passed to
    ``torch.save``."""
    file = io.BytesIO()
    torch.save(thing, file, **options)
    file.seek(0)
    return file


def check_large_tensors(subject: Subject, way: str) -> None:
    """Check that tensors of 1 to 5 MiB on the device are saved and loaded without losing a byte.

    Args:
        subject: The plugin under test, with its device.
        way: How the tensors are saved and loaded. ``pickle``: with the module ``pickle``. ``whole``: with ``torch.save`` and
            ``torch.load``. ``mmap``: like ``whole``, but ``torch.load`` is called with ``mmap=True``. ``weights_only=False``: like
            ``whole``, but ``torch.load`` is called with ``weights_only=False``. With ``torch.load``, each tensor is loaded three times:
            without ``map_location``, to the device and to the CPU.

    Raises:
        AssertionError: If an element differs, or if a loaded tensor is on the wrong device.
    """
    generator = torch.Generator().manual_seed(2)
    for size in _SIZES:
        here = torch.rand(size // 4, generator=generator)
        there = here.to(subject.device)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tensor.pt"
            for location in (None,) if way == "pickle" else (None, str(subject.device), "cpu"):
                if way == "pickle":
                    back = pickle.loads(pickle.dumps(there))
                else:
                    torch.save(there, path)
                    back = torch.load(path, map_location=location, mmap=way == "mmap", weights_only=not way.startswith("weights_only"))
                if location == "cpu":
                    assert back.device.type == "cpu", f"a tensor that was loaded to the CPU is on {back.device}"
                else:
                    subject.assert_on_device(back)
                wrong = int((back.cpu() != here).sum())
                assert not wrong, (
                    f"{wrong} of {len(here)} elements are wrong after loading {size} bytes to {location or 'their own device'}"
                )


def check_kinds_of_tensors(subject: Subject, way: str) -> None:
    """Check that copies of tensors are on the right device and have the right dtype, shape, values and ``requires_grad``.

    Contiguous, strided, and lazily conjugated or negated tensors are copied, in float32 and in every other dtype of ``DTYPES`` that the
    device declares. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        way: How the tensors are copied. ``torch.save``: with ``torch.save`` and ``torch.load``. ``weights_only=False``: the same, but
            ``torch.load`` is called with ``weights_only=False``. ``pickle``: with the module ``pickle``. ``deepcopy``: with
            ``copy.deepcopy``. With ``torch.load``, tensors on the device are also loaded to the CPU, and tensors on the CPU to the device.
    """
    for dtype in (one for one in DTYPES if one == "float32" or subject.capabilities.can(f"dtype.{one}")):
        here = torch.tensor([[0, 1, 2], [3, 5, 7]]).to(getattr(torch, dtype))
        if here.is_complex():
            here = here + torch.tensor([1j, -2j, 3j]).to(here.dtype)
        there = here.to(subject.device)
        for name, view, expected in _views(there, here):
            with subject.sample(f"{name}, {dtype}", {"dtype": dtype, "view": name}):
                for back, device in _copies(view, expected, way, subject.device):
                    assert back.device == device, f"the copy is on {back.device}, not on {device}"
                    form, right = ((one.dtype, tuple(one.shape), one.requires_grad) for one in (back, expected))
                    assert form == right, f"the copy has the dtype, shape and requires_grad {form}, not {right}"
                    mine, theirs = (one.detach().cpu().resolve_conj().resolve_neg() for one in (back, expected))
                    is_right = mine.contiguous().view(torch.uint8).tolist() == theirs.contiguous().view(torch.uint8).tolist()
                    assert is_right, f"the copy has the values {mine.tolist()}, not {theirs.tolist()}"


def _views(there: torch.Tensor, here: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield ``(name, view, expected)`` for each kind of view: ``view`` is a view of ``there``, which is on the device, and ``expected`` is
    the same view of ``here``, an equal tensor on the CPU."""
    yield "whole", there, here
    yield "strided", there[:, ::2], here[:, ::2]
    if here.is_complex():
        yield "conjugated", there.conj(), here.conj()
        yield "conjugated and strided", there.conj()[:, ::2], here.conj()[:, ::2]
        yield "negated", there.conj().imag, here.conj().imag
    if here.is_floating_point() or here.is_complex():
        yield "requires a gradient", there.detach().requires_grad_(), here.detach().requires_grad_()


def _copies(view: torch.Tensor, on_cpu: torch.Tensor, way: str, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.device]]:
    """Yield copies of ``view``, a tensor on ``device``, each with the device on which the copy must be.

    If ``way`` (see ``check_kinds_of_tensors``) uses ``torch.load``, three copies are yielded. For the first two, ``view`` is saved, and is
    loaded to its own device and to the CPU. For the third, ``on_cpu``, which is equal to ``view``, is saved and is loaded to ``device``.
    """
    if way in ("pickle", "deepcopy"):
        yield (copy.deepcopy(view) if way == "deepcopy" else pickle.loads(pickle.dumps(view))), device
        return
    for tensor, location, expected in ((view, None, device), (view, "cpu", torch.device("cpu")), (on_cpu, str(device), device)):
        file = io.BytesIO()
        torch.save(tensor, file)
        options: dict[str, Any] = {"map_location": location, "weights_only": way != "weights_only=False"}
        yield torch.load(io.BytesIO(file.getvalue()), **options), expected
