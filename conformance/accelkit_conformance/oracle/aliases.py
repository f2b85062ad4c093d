"""Checks of aliasing (whether a call returns its argument itself, a tensor that shares memory with it, or a copy), of gradients through
copies, and of DLPack."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import to_dlpack

from accelkit_conformance.profiles.operators import DTYPES
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Call = Callable[[torch.Tensor], torch.Tensor]

_RETURN_THEMSELVES: dict[str, _Call] = {
    "to(device)": lambda x: x.to(x.device),
    "to(name of the device)": lambda x: x.to(str(x.device)),
    "to(dtype)": lambda x: x.to(torch.float32),
    "to(device, dtype)": lambda x: x.to(x.device, torch.float32),
    "to(device=, dtype=)": lambda x: x.to(device=x.device, dtype=torch.float32, non_blocking=True),
    "to(tensor)": lambda x: x.to(torch.zeros(1, device=x.device)),
    "type(dtype)": lambda x: x.type(torch.float32),
    "type_as": lambda x: x.type_as(x),
    "float": lambda x: x.float(),
    "contiguous": lambda x: x.contiguous(),
    "as_tensor": torch.as_tensor,
    "as_tensor(device=)": lambda x: torch.as_tensor(x, device=x.device, dtype=torch.float32),
    "asarray": torch.asarray,
    "asarray(copy=False)": lambda x: torch.asarray(x, copy=False),
    "resolve_conj": lambda x: x.resolve_conj(),
    "requires_grad_": lambda x: x.requires_grad_(False),
}
_SHARE_MEMORY: dict[str, _Call] = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "view": lambda x: x.view(2, 6),
    "view(dtype)": lambda x: x.view(torch.int32).view(torch.float32),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "expand": lambda x: x.expand(2, 3, 4),
    "t": lambda x: x.t(),
    "alias": torch.ops.aten.alias,
    "copy.copy": copy.copy,
    "Parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "as_strided": lambda x: x.as_strided((3, 4), (4, 1)),
    "set_": lambda x: torch.empty(0, device=x.device).set_(x),
    "untyped_storage": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage(), 0, (3, 4), (4, 1)),  # type: ignore[call-overload]
}
_COPY: dict[str, _Call] = {
    "clone": lambda x: x.clone(),
    "to(copy=True)": lambda x: x.to(x.device, copy=True),
    "to(dtype, copy=True)": lambda x: x.to(torch.float32, copy=True),
    "asarray(copy=True)": lambda x: torch.asarray(x, copy=True),
    "tensor": torch.tensor,
    "new_tensor": lambda x: x.new_tensor(x),
    "reshape of a transposed tensor": lambda x: x.t().reshape(12).view(4, 3).t(),
    "contiguous of a transposed tensor": lambda x: x.t().contiguous().t(),
    "deepcopy": copy.deepcopy,
    "x[indices]": lambda x: x[[0, 1, 2]],
    "through float64": lambda x: x.double().float() if x.device.type != "mps" else x.half().float(),
    "cat of one tensor": lambda x: torch.cat([x]),
}

_LACKS_DLPACK = ("Cannot pack tensors on", "Unsupported device_type")  # in the text of torch's RuntimeErrors


def check_aliases(subject: Subject) -> None:
    """Check that each call returns the right kind of result: its argument, a tensor that shares memory with it, or a copy.

    A failure is recorded in the subject if a result is on the wrong device or has wrong values. A failure is also recorded if a result is
    not of the right kind, for example if it is a copy but should share memory with the argument.
    """
    groups: tuple[tuple[str, dict[str, _Call]], ...] = (
        ("itself", _RETURN_THEMSELVES), ("shared memory", _SHARE_MEMORY), ("a copy", _COPY),
    )  # fmt: skip
    for relation, calls in groups:
        for name, call in calls.items():
            if (name.startswith("view(dtype") and subject.lacks("int32")) or (name == "through float64" and subject.lacks("float64")):
                continue
            with subject.sample(name, {"name": name}), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch.tensor of a tensor
                x = torch.arange(12.0, device=subject.device).view(3, 4)
                found = call(x)
                subject.assert_on_device(found)
                assert sorted(set(found.detach().flatten().tolist())) == list(range(12)), f"{name} gave {found.tolist()}"
                assert (found is x) == (relation == "itself"), (
                    f"{name} {'did not return' if relation == 'itself' else 'returned'} its argument"
                )
                with torch.no_grad():
                    x[1, 2] = -5
                is_shared = -5.0 in found.detach().flatten().tolist()
                assert is_shared == (relation != "a copy"), (
                    f"{name}: a change to the argument {'changed' if is_shared else 'did not change'} the result"
                )


def check_gradients_of_copies(subject: Subject) -> None:
    """Check gradients through copies between the host and the device, between devices, and between dtypes.

    A failure is recorded in the subject if a gradient differs from its leaf in device, dtype or shape, or if it has wrong values.
    """
    host, device = torch.device("cpu"), subject.device
    ways: dict[str, tuple[torch.device, Callable[[torch.Tensor], torch.Tensor]]] = {
        "to the device": (host, lambda x: x.to(device)),
        "to the device, not blocking": (host, lambda x: x.to(device, non_blocking=True)),
        "to the host": (device, lambda x: x.cpu()),
        "to the device and back": (host, lambda x: (x.to(device) * 2).cpu() / 2),
        "copy_ to the device": (host, lambda x: torch.zeros(3, 4, device=device).copy_(x)),
        "copy_ to the host": (device, lambda x: torch.zeros(3, 4).copy_(x)),
        "copy_ on the device": (device, lambda x: torch.zeros(3, 4, device=device).copy_(x)),
        "an assignment of the host": (host, lambda x: _assigned(torch.zeros(5, 4, device=device), x)[1:4]),
        "clone": (device, lambda x: x.clone()),
        "contiguous": (device, lambda x: x.t().contiguous().t()),
        "as_tensor": (host, lambda x: torch.as_tensor(x, device=device)),
    }
    if subject.capabilities.can("numbered_devices") and len(subject.devices) > 1:
        ways["to another device"] = (device, lambda x: x.to(subject.second_device()))
        ways["copy_ to another device"] = (device, lambda x: torch.zeros(3, 4, device=subject.second_device()).copy_(x))
    for dtype in ("float16", "bfloat16", "float64"):
        if subject.capabilities.can(f"dtype.{dtype}"):
            kind = getattr(torch, dtype)
            ways[f"to {dtype}"] = (device, lambda x, kind=kind: x.to(kind))  # type: ignore[misc]
            ways[f"to the device and {dtype}"] = (host, lambda x, kind=kind: x.to(device, kind))  # type: ignore[misc]
            ways[f"to the host and {dtype}"] = (device, lambda x, kind=kind: x.to("cpu", kind))  # type: ignore[misc]
            ways[f"copy_ to {dtype}"] = (device, lambda x, kind=kind: torch.zeros(3, 4, dtype=kind, device=device).copy_(x))  # type: ignore[misc]
    weights = torch.arange(12.0).view(3, 4) - 5
    for name, (place, way) in ways.items():
        with subject.sample(name, {"name": name}):
            leaf = torch.arange(12.0).view(3, 4).to(place).requires_grad_()
            result = way(leaf)
            assert result.requires_grad, f"the result of a copy ({name}) does not require a gradient"
            result.backward(weights.to(result))  # type: ignore[no-untyped-call]
            assert leaf.grad is not None, "the source has no gradient"
            form, right = ((one.device, one.dtype, tuple(one.shape)) for one in (leaf.grad, leaf))
            assert form == right, f"the gradient has the device, dtype and shape {form}, not {right}"
            assert torch.equal(leaf.grad.cpu(), weights), f"the gradient is {leaf.grad.tolist()}"


def _assigned(target: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    target[1:4] = values
    return target


DLPACK: dict[str, Callable[[torch.Tensor], Any]] = {
    "from_dlpack": torch.from_dlpack,
    "capsule": lambda x: torch.from_dlpack(to_dlpack(x)),  # type: ignore[arg-type]
}
"""Ways to pass a tensor through DLPack, by name. The first is not supported for devices whose type torch does not know by name."""


def check_dlpack(subject: Subject) -> None:
    """Check that a tensor that went through DLPack is on the device, equals the original tensor and shares memory with it.

    A failure is recorded in the subject if a result is on another device, has a wrong dtype, shape, stride or value, or does not share
    memory.

    Raises:
        NotSupported: If the device does not support DLPack.
    """
    base = torch.arange(24.0, device=subject.device).view(4, 6)
    ways: dict[str, Callable[[torch.Tensor], Any]] = {}
    for way, exchange in DLPACK.items():
        try:
            exchange(base)
            ways[way] = exchange
        except (BufferError, NotImplementedError, ValueError) as error:  # torch raises a ValueError for a device type without DLPack
            reason = str(error)
        except RuntimeError as error:
            if not any(text in str(error) for text in _LACKS_DLPACK):
                raise
            reason = str(error)
    if not ways:
        raise NotSupported(f"the device does not support DLPack: {reason}")
    views = {
        "whole": base,
        "offset": base[1:],
        "strided": base[:, ::2],
        "transposed": base.t(),
        "0-d": base[2, 3],
        "one row": base[:1],
        "empty": base[:0],
    }
    for dtype in (one for one in DTYPES if subject.capabilities.can(f"dtype.{one}")):
        views[dtype] = (torch.arange(12) % 5).to(getattr(torch, dtype)).to(subject.device)
    for (name, x), (way, exchange) in itertools.product(views.items(), ways.items()):
        with subject.sample(f"{name}, {way}", {"name": name}):
            back = exchange(x)
            subject.assert_on_device(back)
            form, right = ((one.dtype, tuple(one.shape)) for one in (back, x))
            assert form == right, f"a tensor that went through DLPack has the dtype and shape {form}, not {right}"
            assert back.stride() == x.stride() or x.numel() < 2, f"a tensor that went through DLPack has the strides {back.stride()}"
            assert torch.equal(back.cpu(), x.cpu()), f"a tensor that went through DLPack has the values {back.tolist()}"
            kept = x.clone()
            back.zero_()
            assert not bool(x.cpu().any()), "a tensor that went through DLPack does not share memory with the original"
            x.copy_(kept)
