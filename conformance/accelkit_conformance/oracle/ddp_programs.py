"""Checks of DistributedDataParallel with less common options and models. The results are compared with those of one process that computes
the whole batch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from accelkit_conformance.oracle.ddp_models import Recomputed, Several
from accelkit_conformance.oracle.device_streams import make_stream, num_slow_products, on_stream, slow_product
from accelkit_conformance.oracle.layers import batch_norm
from accelkit_conformance.oracle.scaler_options import require_scaler
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_ROWS = 4


def _loss(output: dict[str, Any]) -> torch.Tensor:
    return output["a"].float().square().mean() + output["b"][0].float().sin().mean() + output["b"][1]["c"].float().mean() * 0.1  # type: ignore[no-any-return]


class _Training:
    """A DDP model, and a copy that each rank trains without DDP, on the CPU and with the batches of all ranks."""

    def __init__(self, subject: Subject, make: Callable[[], nn.Module] = Several, **options: Any) -> None:
        torch.default_generator.manual_seed(0)
        self.single = make()
        self.subject, self.device = subject, subject.device
        model = copy.deepcopy(self.single).to(subject.device)
        if isinstance(model, Several):  # after the move, which may untie weights
            model.other.weight, self.single.other.weight = model.one.weight, self.single.one.weight
        self.ddp = DistributedDataParallel(model, **options)
        self.batches = torch.randn(4, subject.world_size * _ROWS, 27)

    def mine(self, number: int) -> torch.Tensor:
        rows = slice(_ROWS * self.subject.rank, _ROWS * (self.subject.rank + 1))
        return self.batches[number, rows].to(self.device)

    def backward(self, number: int) -> None:
        _loss(self.ddp(self.mine(number))).backward()
        _loss(self.single(self.batches[number])).backward()

    def check(self, tolerance: float = 1e-4, factor: float = 1.0) -> None:
        """Assert that the DDP model's gradients are on the device and are ``factor`` times those of the model without DDP.

        The relative tolerance is ``tolerance``. The absolute tolerance is ``tolerance`` times the largest element, plus 1e-7.
        """
        for (name, ours), theirs in zip(self.ddp.module.named_parameters(), self.single.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), (
                f"{name} has a gradient in the DDP model or in the single-process model, but not in both"
            )
            if ours.grad is not None and theirs.grad is not None:
                self.subject.assert_on_device(ours.grad)
                expected = theirs.grad * factor
                torch.testing.assert_close(ours.grad.cpu(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()) + 1e-7)


def _steps(subject: Subject, make: Callable[[], nn.Module] = Several, *, tolerance: float = 1e-3, **options: Any) -> None:
    """Take four steps with DDP and in one process, and compare the gradients of each step and the parameters at the end."""
    training = _Training(subject, make, **options)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.2, momentum=0.9) for one in (training.ddp, training.single)]
    for number in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=number != 2)
        training.backward(number)
        training.check(tolerance)
        for optimizer in optimizers:
            optimizer.step()
    for ours, theirs in zip(training.ddp.parameters(), training.single.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=tolerance, atol=tolerance)


def _hooks(subject: Subject) -> None:
    training = _Training(subject, bucket_cap_mb=1e-4)
    training.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    training.backward(0)
    training.check()
    training = _Training(subject)
    seen: list[torch.device] = []

    def double(state, bucket):  # type: ignore[no-untyped-def] # torch rejects annotations that are strings
        seen.append(bucket.buffer().device)
        reduced = dist.all_reduce(bucket.buffer().mul_(2 / subject.world_size), async_op=True).get_future()
        return reduced.then(lambda future: future.value()[0])

    training.ddp.register_comm_hook(None, double)
    training.backward(1)
    training.check(factor=2.0)
    assert seen, "the hook was not called"
    assert all(one == subject.device for one in seen), f"the hook got buffers on {seen}"


def _compressed(subject: Subject) -> None:
    subject.needs("float16")
    training = _Training(subject)
    training.ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    training.backward(0)
    training.check(0.02)


def _several_dtypes(subject: Subject) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(27, 8), nn.Linear(8, 8, dtype=torch.bfloat16)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            y = self.other(self.one(x).bfloat16()).float()
            return {"a": y, "b": [y, {"c": y}]}

    subject.needs("bfloat16")
    training = _Training(subject, Mixed)
    for number in range(2):
        training.backward(number)
    training.check(0.05)


def _buffers(subject: Subject) -> None:
    """Check that each forward pass starts with rank 0's buffers or, with ``broadcast_buffers=False``, with the rank's own buffers."""
    for is_broadcast in (True, False):
        layer = nn.Sequential(nn.Flatten(), batch_norm(subject, 27)).to(subject.device)
        ddp = DistributedDataParallel(layer, broadcast_buffers=is_broadcast)
        x = torch.arange(_ROWS * 27.0).view(_ROWS, 27).to(subject.device) * (subject.rank + 1)
        for _ in range(2):
            ddp(x).sum().backward()
        mean = layer[1].running_mean
        assert isinstance(mean, torch.Tensor)
        subject.assert_on_device(mean)
        own = x.mean(0) * 0.1
        first = x.mean(0) / (subject.rank + 1) * 0.1
        expected = (first if is_broadcast else own) * 0.9 + own
        torch.testing.assert_close(mean.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)


def _group_of_one(subject: Subject) -> None:
    """Check that gradients are not averaged over ranks if the process group of each rank contains only that rank."""
    groups = [dist.new_group([one]) for one in range(subject.world_size)]
    training = _Training(subject, process_group=groups[subject.rank])
    _loss(training.ddp(training.mine(0))).backward()
    _loss(training.single(training.mine(0).cpu())).backward()
    training.check()


def _uneven(subject: Subject) -> None:
    """Check that inside ``join``, ranks without any batches left still take part in the reductions of the other ranks."""
    rank, n = subject.rank, subject.world_size
    torch.default_generator.manual_seed(0)
    model = nn.Linear(3, 2)
    ddp = DistributedDataParallel(copy.deepcopy(model).to(subject.device))
    batches = torch.randn(n, n, 2, 3)
    totals = [torch.zeros_like(parameter) for parameter in model.parameters()]
    with ddp.join(divide_by_initial_world_size=True):
        for number in range(rank + 1):
            ddp.zero_grad()
            ddp(batches[rank, number].to(subject.device)).square().sum().backward()
            for total, parameter in zip(totals, ddp.parameters(), strict=True):
                assert parameter.grad is not None
                total.add_(parameter.grad.cpu())
    losses = [model(batches[one, number]).square().sum() for one in range(n) for number in range(one + 1)]
    (torch.stack(losses).sum() / n).backward()
    if rank == n - 1:  # this rank had a batch in each round
        for ours, theirs in zip(totals, model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.grad, rtol=1e-4, atol=1e-5)


def _without_reduction(subject: Subject) -> None:
    """Check the gradients that ``no_sync`` accumulates over several passes, before and after clipping.

    The check begins with a forward pass in evaluation mode under ``no_grad``.
    """
    training = _Training(subject)
    with torch.no_grad():
        training.ddp.eval()(training.mine(3))
    training.ddp.train()
    with training.ddp.no_sync():
        for number in range(2):
            _loss(training.ddp(training.mine(number))).backward()
    _loss(training.ddp(training.mine(2))).backward()
    for number in range(3):
        _loss(training.single(training.batches[number])).backward()
    training.check()
    norms = [float(nn.utils.clip_grad_norm_(one.parameters(), 0.05)) for one in (training.ddp, training.single)]
    assert abs(norms[0] - norms[1]) < 1e-3 * norms[1], f"the norm of all gradients is {norms[0]}, not {norms[1]}"
    training.check()


def _sharded_optimizer(subject: Subject) -> None:
    training = _Training(subject)
    sharded = ZeroRedundancyOptimizer(training.ddp.parameters(), torch.optim.AdamW, lr=0.05)
    optimizer = torch.optim.AdamW(training.single.parameters(), lr=0.05)
    for number in range(3):
        sharded.zero_grad()
        optimizer.zero_grad()
        training.backward(number)
        sharded.step()
        optimizer.step()
    for ours, theirs in zip(training.ddp.parameters(), training.single.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-2, atol=5e-3)


def _scaled(subject: Subject) -> None:
    """Check that the gradient scalers of all ranks skip the step and halve their scale if the gradients of one rank overflow."""
    require_scaler(subject)
    training = _Training(subject)
    scaler = torch.amp.GradScaler(subject.device_type, init_scale=64.0)
    optimizer = torch.optim.SGD(training.ddp.parameters(), lr=0.1)
    for number, is_poisoned in enumerate((False, True)):
        optimizer.zero_grad()
        before = [one.detach().clone() for one in training.ddp.parameters() if one.requires_grad]
        factor = float("inf") if is_poisoned and subject.rank == 0 else 1.0
        scaler.scale(_loss(training.ddp(training.mine(number))) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        after = [one.detach() for one in training.ddp.parameters() if one.requires_grad]
        is_changed = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert any(is_changed) != is_poisoned, f"{sum(is_changed)} parameters changed in step {number}"
    assert scaler.get_scale() == 32.0, f"on rank {subject.rank}, the scale is {scaler.get_scale()}, not 32"


def _complex(subject: Subject) -> None:
    """Check the gradients of complex parameters, which DDP reduces as pairs of real numbers."""

    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.randn(27, 8, dtype=torch.complex64))
            self.second, self.scale = nn.Linear(8, 8, dtype=torch.complex64), nn.Parameter(torch.tensor(1.5 - 0.5j))

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            y = self.second(x.to(torch.complex64) @ self.first) * self.scale
            return {"a": y.real, "b": [y.imag, {"c": y.abs()}]}

    subject.needs("complex64")
    for options in ({}, {"bucket_cap_mb": 1e-4}, {"gradient_as_bucket_view": True}):
        training = _Training(subject, Complex, **options)
        for number in range(2):
            training.backward(number)
        training.check()


def _other_stream(subject: Subject) -> None:
    """Check the gradients of steps on a stream that is not the default stream and still has other work queued."""
    if not subject.capabilities.can("streams"):
        raise NotSupported("the device has no streams")
    training = _Training(subject, bucket_cap_mb=1e-4)
    stream, repeats = make_stream(subject), num_slow_products(subject)
    subject.synchronize()
    for number in range(4):
        training.single.zero_grad()
        with on_stream(subject, stream):
            training.ddp.zero_grad()
            batch, a = training.mine(number), torch.rand(512, 512, device=subject.device)
            for _ in range(repeats):
                a = slow_product(a)
            _loss(training.ddp(batch)).backward()
        _loss(training.single(training.batches[number])).backward()
        with on_stream(subject, stream) if number % 2 else contextlib.nullcontext():
            if not number % 2:
                stream.synchronize()
            training.check()


CASES: Mapping[str, Callable[[Subject], None]] = {
    "default": _steps,
    "static_graph": lambda subject: _steps(subject, static_graph=True),
    "static_graph_with_checkpointing": lambda subject: _steps(subject, Recomputed, static_graph=True),
    "small_buckets": lambda subject: _steps(subject, bucket_cap_mb=1e-4),
    "bucket_views": lambda subject: _steps(subject, bucket_cap_mb=2e-4, gradient_as_bucket_view=True),
    "unused_and_views": lambda subject: _steps(subject, find_unused_parameters=True, gradient_as_bucket_view=True),
    "hooks": _hooks,
    "compressed": _compressed,
    "several_dtypes": _several_dtypes,
    "buffers": _buffers,
    "group_of_one": _group_of_one,
    "uneven_inputs": _uneven,
    "without_reduction": _without_reduction,
    "sharded_optimizer": _sharded_optimizer,
    "scaled": _scaled,
    "complex": _complex,
    "other_stream": _other_stream,
}
"""The cases, by name."""
