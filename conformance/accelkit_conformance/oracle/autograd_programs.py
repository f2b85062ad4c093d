"""Programs that use autograd in less common ways: hooks, saved tensors, gradient modes, custom functions, unused inputs, and
repeated backward passes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # the usual name
from torch.autograd.graph import register_multi_grad_hook, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from accelkit_conformance.oracle.programs import Program


def _leaf(device: torch.device, *shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device).requires_grad_()


def _layer(device: torch.device) -> torch.nn.Sequential:
    torch.default_generator.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(device)


def _gradients(*leaves: torch.Tensor) -> list[torch.Tensor | None]:
    return [one.grad for one in leaves]


def _saved_on_cpu(device: torch.device) -> Any:
    layer, x = _layer(device), _leaf(device, 4, 6)
    with save_on_cpu():
        y = layer(x).square().sum()
    y.backward()
    return y, _gradients(x, *layer.parameters())


def _packed_as_another_dtype(device: torch.device) -> Any:
    layer, x, seen = _layer(device), _leaf(device, 4, 6), []

    def pack(one: torch.Tensor) -> torch.Tensor:
        seen.append(one.device == device)
        return one.to(torch.float64) if device.type == "cpu" else one.cpu()

    with saved_tensors_hooks(pack, lambda one: one.to(device, torch.float32)):
        layer(x).exp().sum().backward()
    return all(seen), len(seen) > 0, _gradients(x, *layer.parameters())


def _post_accumulate_hooks(device: torch.device) -> Any:
    layer, x, seen = _layer(device), _leaf(device, 4, 6), []
    for parameter in layer.parameters():

        def step(one: torch.Tensor) -> None:
            assert one.grad is not None
            seen.append(one.grad.clone())
            with torch.no_grad():
                one.sub_(one.grad, alpha=0.1)
            one.grad = None

        parameter.register_post_accumulate_grad_hook(step)
    layer(x).square().sum().backward()
    return seen, [one.detach() for one in layer.parameters()], [one.grad is None for one in layer.parameters()]


def _doubled(module: torch.nn.Module, gradients: Any) -> Any:
    return (gradients[0] * 2,)


def _module_hooks(device: torch.device) -> Any:
    layer, x = _layer(device), _leaf(device, 4, 6)
    seen: list[Any] = []
    layer[1].register_full_backward_pre_hook(_doubled)
    layer[2].register_full_backward_hook(lambda _, *gradients: seen.extend(one[0] for one in gradients))
    layer[0].register_forward_hook(lambda module, given, output: output + 1)
    layer[0].register_forward_pre_hook(lambda module, given: (given[0] * 0.5,))
    layer(x).sum().backward()
    return seen, _gradients(x, *layer.parameters())


def _multi_grad_hooks(device: torch.device) -> Any:
    x, y = _leaf(device, 3), _leaf(device, 3, seed=4)
    seen: list[Any] = []
    handle = register_multi_grad_hook((x, y), seen.extend)
    (x * y).sum().backward()
    handle.remove()
    z = x * 3
    z.retain_grad()
    z.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10, None))  # type: ignore[union-attr]
    z.square().sum().backward()
    leaf = _leaf(device, 3, seed=6)
    handle = leaf.register_hook(lambda gradient: gradient * 10)
    (leaf * leaf).sum().backward()
    handle.remove()
    (leaf * 2).sum().backward()
    return seen, z.grad, _gradients(x, y, leaf)


def _unused(device: torch.device) -> Any:
    x, y = _leaf(device, 3), _leaf(device, 2, 2, seed=4)
    loss = (x * x).sum()
    first = torch.autograd.grad(loss, [x, y], allow_unused=True, retain_graph=True)
    second = torch.autograd.grad(loss, [x, y], materialize_grads=True, retain_graph=True)
    loss.backward(inputs=[x])
    return first[0], first[1] is None, second, x.grad, y.grad is None


def _batched_output_gradients(device: torch.device) -> Any:
    x = _leaf(device, 4)
    y = x.sin() * x
    rows = torch.eye(4, device=device)
    (jacobian,) = torch.autograd.grad(y, x, rows, is_grads_batched=True, retain_graph=True)
    return jacobian, torch.autograd.functional.jacobian(lambda one: one.exp() * one.sum(), x.detach())


def _hessians(device: torch.device) -> Any:
    x, v = _leaf(device, 4).detach(), _leaf(device, 4, seed=5).detach()
    loss = lambda one: (one.tanh() * one.flip(0)).sum() + one.prod()  # noqa: E731
    functional = torch.autograd.functional
    return functional.hessian(loss, x), functional.vhp(loss, x, v), functional.hvp(loss, x, v)


def _repeated_passes(device: torch.device) -> Any:
    layer, x = _layer(device), _leaf(device, 4, 6)
    found = []
    loss = F.cross_entropy(layer(x), torch.tensor([0, 2, 1, 1], device=device)) + layer(x).std()
    for _ in range(3):
        found.append(torch.autograd.grad(loss, [x, *layer.parameters()], retain_graph=True))
    for _ in range(2):
        loss.backward(retain_graph=True)
    return found, _gradients(x, *layer.parameters())


def _other_dtypes(device: torch.device) -> Any:
    x, y = _leaf(device, 8), _leaf(device, 8, seed=4)
    (x.to(torch.bfloat16) * 2).float().sum().backward()
    (y.to(torch.float16).float() * y).sum().backward()
    (x * y.to(torch.int64)).sum().backward()
    return _gradients(x, y)


def _through_the_cpu(device: torch.device) -> Any:
    x, w = _leaf(device, 4, 3), _leaf(torch.device("cpu"), 3, 2, seed=4)
    y = (x.cpu() @ w).to(device).relu() * x.sum()
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.device.type == "cpu", f"the gradient of a leaf on the CPU is on {w.grad.device}"
    return x.grad, w.grad.to(device)


def _accumulated(device: torch.device) -> Any:
    x, y, z = (_leaf(device, 4, 3, seed=seed) for seed in (1, 2, 3))
    x.grad = torch.ones(3, 4, device=device).t()
    y.grad = torch.ones(4, 1, device=device).expand(4, 3).contiguous()
    kept = y.grad
    (x * y * z.expand(2, 4, 3)).sum().backward()
    is_in_place = y.grad is kept
    (x.sum() * y).sum().backward(create_graph=True)
    return _gradients(x, y, z), is_in_place


def _in_another_thread(device: torch.device) -> Any:
    x, found = _leaf(device, 5), []

    def run() -> None:
        y = x.exp()
        y.sum().backward()
        found.append((y.requires_grad, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    with torch.no_grad():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        found.append((x * 2).requires_grad)
    return found, x.grad


def _modes(device: torch.device) -> Any:
    x = _leaf(device, 3)
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        x.mul_(2)
    with torch.set_grad_enabled(False):
        c = x.exp()
    decorated = torch.no_grad()(lambda: x + 1)()
    with torch.inference_mode():
        d = torch.ones(3, device=device)
        with torch.inference_mode(False):
            e = x * 2
    clone = d.clone() * x
    detached = x.detach()
    clone.sum().backward()
    return (
        [a, b, c, decorated, e, clone, detached, x.grad],
        d.is_inference(),
        detached.is_leaf,
        x.is_leaf,
        [one.is_leaf for one in (a, b, c)],
    )


class _Scaled(torch.autograd.Function):
    """A function with three results: ``x * factor + y``, the bool tensor ``x > 0`` (not differentiable), and ``x.exp()``. The gradient of
    ``y`` is computed only if it is needed."""

    @staticmethod
    def forward(ctx, x, y, factor):  # type: ignore[no-untyped-def]
        result, sign = x * factor + y, (x > 0)
        ctx.mark_non_differentiable(sign)
        ctx.save_for_backward(x, result)
        ctx.factor = factor
        return result, sign, x.exp()

    @staticmethod
    def backward(ctx, gradient, _, other):  # type: ignore[no-untyped-def]
        x, result = ctx.saved_tensors
        assert result.shape == x.shape
        return gradient * ctx.factor + other * x.exp(), gradient.sum(0) if ctx.needs_input_grad[1] else None, None


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * 3


def _custom_functions(device: torch.device) -> Any:
    x, y = _leaf(device, 4, 3), _leaf(device, 3, seed=5)
    result, sign, _ = _Scaled.apply(x, y, 2.5)  # type: ignore[no-untyped-call]
    z = x * 1
    changed = _InPlace.apply(z)  # type: ignore[no-untyped-call]
    _, _, other = _Scaled.apply(x, y.detach(), 2.0)  # type: ignore[no-untyped-call]
    (first,) = torch.autograd.grad(other.sum() + result.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, retain_graph=True)
    (result.sum() + (changed * x).sum()).backward()
    return result, sign, changed is z, z, first, second, _gradients(x, y)


def _checkpointed(device: torch.device) -> Any:
    x, y, found = _leaf(device, 4, 6), _leaf(device, 4, 6, seed=5), []
    layer = _layer(device)

    def block(a: torch.Tensor, number: int, b: dict[str, torch.Tensor], *, power: float) -> tuple[torch.Tensor, int]:
        inner = checkpoint(lambda one: one.sin() * one, a, use_reentrant=False)
        return layer(inner * number + b["b"]).pow(power), number

    for way in ({"use_reentrant": False}, {"use_reentrant": False, "preserve_rng_state": False}):
        result, number = checkpoint(block, x, 3, {"b": y}, power=2.0, **way)
        result.sum().backward()
        found.append((result, number))
    z = checkpoint_sequential([layer[0], layer[1], layer[2]], 2, x, use_reentrant=False)
    z.sum().backward()
    return found, z, _gradients(x, y, *layer.parameters())


def _anomalies(device: torch.device) -> Any:
    found = []
    for value in (1.0, -1.0):
        x = torch.full((3,), value, device=device, requires_grad=True)
        try:
            with torch.autograd.set_detect_anomaly(True, check_nan=True):
                (x.sqrt() if value < 0 else x.exp()).sum().backward()
        except RuntimeError as error:
            found.append("nan" in str(error))
        else:
            found.append(x.grad)
    return found


PROGRAMS: Mapping[str, Program] = {
    "saved_on_cpu": _saved_on_cpu,
    "packed_tensors": _packed_as_another_dtype,
    "post_accumulate_hooks": _post_accumulate_hooks,
    "module_hooks": _module_hooks,
    "multi_grad_hooks": _multi_grad_hooks,
    "unused_inputs": _unused,
    "batched_output_gradients": _batched_output_gradients,
    "hessians": _hessians,
    "repeated_passes": _repeated_passes,
    "other_dtypes": _other_dtypes,
    "through_the_cpu": _through_the_cpu,
    "accumulated": _accumulated,
    "in_another_thread": _in_another_thread,
    "modes": _modes,
    "custom_functions": _custom_functions,
    "checkpointed": _checkpointed,
    "anomalies": _anomalies,
}
"""The programs, by name."""
