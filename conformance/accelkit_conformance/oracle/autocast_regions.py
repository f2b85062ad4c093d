"""Checks of less common uses of autocast: several dtypes, threads, custom functions, transforms, and tensors that must not be cast or
cached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch.amp import custom_bwd, custom_fwd

from accelkit_conformance.results import Absent, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


class _Region:
    """A device, a dtype for autocast, and tensors to compute with."""

    def __init__(self, subject: Subject, dtype: str) -> None:
        self.low: torch.dtype = getattr(torch, dtype)
        self.subject, self.device, self.kind = subject, subject.device, subject.accelerator.autocast_device_type
        self.x = torch.arange(16.0, device=self.device).view(4, 4) / 8
        self.weight = torch.eye(4, device=self.device, requires_grad=True)
        with self.on():
            if (self.x @ self.x).dtype != self.low:
                raise Absent(f"autocast did not compute in {dtype}")

    def on(self, **options: Any) -> torch.autocast:
        return torch.autocast(self.kind, **{"dtype": self.low, **options})

    def dtype(self) -> torch.dtype:
        """Return the dtype in which a product of float32 matrices is computed."""
        return (self.x @ self.x).dtype


_PRODUCTS: Mapping[str, tuple[torch.Size, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "@": (torch.Size((4, 4)), lambda x, w: x @ w),
    "matmul": (torch.Size((4, 4)), torch.matmul),
    "mm": (torch.Size((4, 4)), torch.mm),
    "mv": (torch.Size((4,)), torch.mv),
    "addmm": (torch.Size((4, 4)), lambda x, w: torch.addmm(x, x, w)),
    "bmm": (torch.Size((1, 4, 4)), lambda x, w: torch.bmm(x[None], w)),
    "baddbmm": (torch.Size((1, 4, 4)), lambda x, w: torch.baddbmm(x[None], x[None], w)),
    "einsum": (torch.Size((4, 4)), lambda x, w: torch.einsum("ij,jk->ik", x, w)),
    "linear": (torch.Size((4, 4)), F.linear),
    "conv1d": (torch.Size((4, 4, 1)), lambda x, w: F.conv1d(x[None], w)),
    "conv2d": (torch.Size((4, 4, 1, 1)), lambda x, w: F.conv2d(x[None, ..., None], w)),
    "conv3d": (torch.Size((4, 4, 1, 1, 1)), lambda x, w: F.conv3d(x[None, ..., None, None], w)),
    "conv_transpose1d": (torch.Size((4, 4, 1)), lambda x, w: F.conv_transpose1d(x[None], w)),
    "conv_transpose2d": (torch.Size((4, 4, 1, 1)), lambda x, w: F.conv_transpose2d(x[None, ..., None], w)),
    "conv_transpose3d": (torch.Size((4, 4, 1, 1, 1)), lambda x, w: F.conv_transpose3d(x[None, ..., None, None], w)),
}
"""Products of a float32 matrix of 4 by 4 numbers and a weight, by name, each with the shape of the weight."""


def _default_dtype(region: _Region) -> None:
    kind, before = region.kind, torch.get_autocast_dtype(region.kind)
    with torch.autocast(kind):
        assert region.dtype() == before, f"without a dtype, autocast computes in {region.dtype()}, not in {before}"
    try:
        torch.set_autocast_dtype(kind, region.low)
        with torch.autocast(kind):
            assert region.dtype() == region.low, "autocast does not use the dtype of set_autocast_dtype"
    finally:
        torch.set_autocast_dtype(kind, before)
    with region.on():
        assert torch.get_autocast_dtype(kind) == region.low
    assert torch.get_autocast_dtype(kind) == before, "a region changed the default dtype"


def _two_dtypes(region: _Region) -> None:
    own = region.low
    another = "float16" if own == torch.bfloat16 else "bfloat16"
    if region.subject.capabilities[f"autocast.{another}"] == "none":
        raise NotSupported(f"autocast.{another} is declared none")
    other = torch.eye(4, device=region.device)  # a leaf that requires a gradient would be cast only once, to the outer dtype
    with region.on():
        y = region.x @ region.weight
        with region.on(dtype=getattr(torch, another)):
            z = y @ other
        again = z @ other
    assert [one.dtype for one in (y, z, again)] == [own, getattr(torch, another), own]
    again.float().sum().backward()
    assert region.weight.grad is not None
    assert region.weight.grad.dtype == torch.float32
    expected = region.x.sum(0)[:, None].expand(4, 4)
    torch.testing.assert_close(region.weight.grad.cpu(), expected.cpu(), rtol=0.02, atol=0.02)


def _other_dtypes(region: _Region) -> None:
    region.subject.needs("int64", "bool")
    with region.on():
        number = torch.arange(4, device=region.device)
        assert (number + number).dtype == torch.int64
        assert (region.x.mean() > 0).dtype == torch.bool
        assert (region.x + region.x).dtype == torch.float32
        assert (region.x.to(region.low) + region.x).dtype == torch.float32
        assert torch.zeros(3, device=region.device).dtype == torch.float32
        if not region.subject.lacks("float64"):
            wide = region.x.double()
            assert (wide @ wide).dtype == torch.float64, "autocast casts float64"


def _outputs_and_in_place(region: _Region) -> None:
    out = torch.empty(4, 4, device=region.device)
    with region.on():
        torch.mm(region.x, region.x, out=out)
        y = torch.zeros(4, 4, device=region.device).addmm_(region.x, region.x)
    exact = (region.x.cpu().double() @ region.x.cpu().double()).float()
    for one in (out, y):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.cpu(), exact, rtol=1e-5, atol=1e-5)


def _threads(region: _Region) -> None:
    found = []
    with region.on():
        thread = threading.Thread(target=lambda: found.append(region.dtype()))
        thread.start()
        thread.join()
        assert region.dtype() == region.low, "another thread switched autocast off"
    assert found == [torch.float32], f"in another thread, the dtype is {found}, although autocast is not enabled there"


def _without_gradients_first(region: _Region) -> None:
    for name, (shape, call) in _PRODUCTS.items():
        weight = torch.linspace(-1, 1, shape.numel(), device=region.device).view(shape).clone().requires_grad_()
        here = weight.detach().cpu().requires_grad_()
        with region.on():
            with torch.no_grad():
                first = call(region.x, weight)
            second = call(region.x, weight)
            third = call(region.x, weight)
        assert not first.requires_grad
        assert second.requires_grad, f"a weight that {name} first used under no_grad gets no gradient from a later call in the same region"
        (second.float().sum() + third.float().sum()).backward()
        (2 * call(region.x.cpu(), here).sum()).backward()
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.cpu(), here.grad, rtol=0.03, atol=0.03, msg=lambda text, name=name: f"{name}: {text}")


def _changed_buffers(region: _Region) -> None:
    buffer = torch.eye(4, device=region.device)
    scaled = region.weight * 1
    with region.on():
        first = region.x @ buffer
        buffer.mul_(2)
        second = region.x @ buffer
        third = region.x @ scaled
        with torch.no_grad():
            scaled.mul_(3)
        fourth = region.x @ scaled
    for factor, one in ((1, first), (2, second), (1, third), (3, fourth)):
        torch.testing.assert_close(one.detach().float().cpu(), factor * region.x.cpu(), rtol=0.01, atol=0.01)


def _without_cache(region: _Region) -> None:
    with region.on(cache_enabled=False):
        assert not torch.is_autocast_cache_enabled()
        first = region.x @ region.weight
        with torch.no_grad():
            region.weight.mul_(2)
        second = region.x @ region.weight
    assert torch.is_autocast_cache_enabled()
    torch.testing.assert_close(second.detach().float().cpu(), 2 * first.detach().float().cpu())


def _decorators(region: _Region) -> None:
    on = region.on()(region.dtype)
    off = region.on(enabled=False)(region.dtype)
    assert [on(), off(), region.dtype()] == [region.low, torch.float32, torch.float32]
    with region.on():
        assert [on(), off(), region.dtype()] == [region.low, torch.float32, region.low]


def _custom_functions(region: _Region) -> None:
    seen: list[Any] = []

    def make(**options: Any) -> Any:
        class Product(torch.autograd.Function):
            @staticmethod
            @custom_fwd(device_type=region.kind, **options)
            def forward(ctx, x, w):  # type: ignore[no-untyped-def]
                ctx.save_for_backward(x, w)
                seen.append((x.dtype, region.dtype()))
                return x @ w

            @staticmethod
            @custom_bwd(device_type=region.kind)
            def backward(ctx, gradient):  # type: ignore[no-untyped-def]
                x, w = ctx.saved_tensors
                seen.append((x.dtype, region.dtype()))
                return gradient.to(w.dtype) @ w.t(), (x.t() @ gradient.to(x.dtype)).float()

        return Product

    full, low = torch.float32, region.low
    for options, is_on, expected in (
        ({}, True, [(full, low), (full, low)]),
        ({"cast_inputs": low}, True, [(low, full), (low, full)]),
        ({"cast_inputs": full}, True, [(full, full), (full, full)]),
        ({"cast_inputs": low}, False, [(full, full), (full, full)]),
    ):
        seen.clear()
        region.weight.grad = None
        with region.on(enabled=is_on):
            y = make(**options).apply(region.x, region.weight)
        y.float().sum().backward()
        assert seen == expected, f"with {options} and autocast {'on' if is_on else 'off'}, the dtypes are {seen}, not {expected}"
        assert region.weight.grad is not None
        exact = region.x.sum(0)[:, None].expand(4, 4)
        torch.testing.assert_close(region.weight.grad.cpu(), exact.cpu(), rtol=0.02, atol=0.02)


def _transforms(region: _Region) -> None:
    seen: list[torch.dtype] = []

    def loss(w: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        y = row[None] @ w
        seen.append(y.dtype)
        return y.float().sum()

    w = region.weight.detach()
    with region.on():
        gradient = torch.func.grad(loss)(w, region.x[1])
        several = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, region.x)
    assert seen == [region.low] * 2, f"inside torch.func transforms, autocast computes in {seen}"
    for found, row in ((gradient, region.x[1]), *zip(several, region.x, strict=True)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.cpu(), row[:, None].expand(4, 4).cpu(), rtol=0.01, atol=0.01)


def _modules(region: _Region) -> None:
    torch.default_generator.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Conv1d(4, 4, 1)]).to(region.device)
    x = region.x.clone().requires_grad_()
    with region.on():
        y = layers[0](x)
        z = layers[1](y[None])
        frozen = torch.nn.functional.linear(z, region.weight.detach())
    assert [one.dtype for one in (y, z, frozen)] == [region.low] * 3
    frozen.sum().backward()
    for one in (x, *layers[0].parameters(), *layers[1].parameters()):
        assert one.grad is not None
        assert one.grad.dtype == torch.float32, f"the gradient of a float32 tensor is {one.grad.dtype}"
    assert not torch.is_autocast_enabled(region.kind)


def _backward_inside(region: _Region) -> None:
    with region.on():
        y = (region.x @ region.weight).float().square().sum()
        y.backward()
        assert region.dtype() == region.low, "a backward pass inside a region switches autocast off"
    first = region.weight.grad
    assert first is not None
    exact = 2 * (region.x.t() @ region.x)
    torch.testing.assert_close(first.cpu(), exact.cpu(), rtol=0.03, atol=0.03)


CASES: Mapping[str, Callable[[_Region], None]] = {
    "default_dtype": _default_dtype,
    "two_dtypes": _two_dtypes,
    "other_dtypes": _other_dtypes,
    "outputs_and_in_place": _outputs_and_in_place,
    "threads": _threads,
    "without_gradients_first": _without_gradients_first,
    "changed_buffers": _changed_buffers,
    "without_cache": _without_cache,
    "decorators": _decorators,
    "custom_functions": _custom_functions,
    "transforms": _transforms,
    "modules": _modules,
    "backward_inside": _backward_inside,
}
"""The cases, by name."""


def check_region(subject: Subject, dtype: str, name: str) -> None:
    """Check the case ``CASES[name]`` with autocast to the dtype ``dtype``, such as ``bfloat16``.

    Raises:
        AssertionError: If a dtype, value or state is wrong.
        Absent: If autocast does not compute in ``dtype`` at all.
        NotSupported: If the device lacks another dtype that the case needs, or does not support that dtype in autocast.
    """
    CASES[name](_Region(subject, dtype))
