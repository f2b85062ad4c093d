"""Checks of FSDP with less common options, and of tensor parallelism and DTensor. Most results are compared with those of an unsharded copy
of the model, which each rank trains on the CPU with the whole batch."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from accelkit_conformance.oracle.scaler_options import require_scaler

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_ROWS = 4


class _Training:
    """A sharded model and an unsharded copy of it, which each rank trains on the CPU with the batches of all ranks."""

    def __init__(self, subject: Subject, *, mesh: DeviceMesh | None = None, freeze: bool = False, **options: Any) -> None:
        torch.default_generator.manual_seed(0)
        self.single = nn.Sequential(nn.Linear(7, 10), nn.GELU(), nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 3, bias=False))
        if freeze:
            self.single[2].requires_grad_(False)
        self.subject, self.device = subject, subject.device
        self.model: Any = copy.deepcopy(self.single).to(subject.device)
        self.mesh = mesh or DeviceMesh(subject.device_type, list(range(subject.world_size)))
        for layer in (self.model[0], self.model[2], self.model[4], self.model):
            fully_shard(layer, mesh=self.mesh, **options)
        self.batches = torch.randn(4, _ROWS * subject.world_size, 7)

    def mine(self, number: int) -> torch.Tensor:
        return self.batches[number, self.subject.rank :: self.subject.world_size].to(self.device)

    def backward(self, number: int) -> None:
        self.model(self.mine(number)).float().square().mean().backward()
        self.single(self.batches[number]).square().mean().backward()

    def check(self, tolerance: float = 1e-4) -> None:
        """Check that the gradients of both models agree, within the relative ``tolerance``."""
        for (name, ours), theirs in zip(self.model.named_parameters(), self.single.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), (
                f"{name} has a gradient in the FSDP model or in the single-process model, but not in both"
            )
            if theirs.grad is not None:
                found = ours.grad.to(self.device).full_tensor().cpu()  # an offloaded gradient is on the CPU
                atol = tolerance * float(theirs.grad.abs().max()) + 1e-7
                torch.testing.assert_close(found, theirs.grad, rtol=tolerance, atol=atol)


def _steps(subject: Subject, *, tolerance: float = 1e-4, **options: Any) -> None:
    """Train both models of ``_Training(subject, **options)`` for three steps. Check that the gradients of each step and the final
    parameters of both models agree within ``tolerance``."""
    training = _Training(subject, **options)
    optimizers = [torch.optim.SGD([p for p in one.parameters() if p.requires_grad], lr=0.1) for one in (training.model, training.single)]
    for number in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        training.backward(number)
        training.check(tolerance)
        for optimizer in optimizers:
            optimizer.step()
    for ours, theirs in zip(training.model.parameters(), training.single.parameters(), strict=True):
        whole = ours.detach().to(subject.device).full_tensor().cpu()
        torch.testing.assert_close(whole, theirs.detach(), rtol=tolerance, atol=tolerance)


def _mixed_precision(subject: Subject) -> None:
    subject.needs("bfloat16")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    training = _Training(subject, mp_policy=policy)
    output = training.model(training.mine(0))
    assert output.dtype == torch.bfloat16, f"the layers compute in {output.dtype}, not in bfloat16"
    training.backward(1)
    training.check(0.05)
    assert all(one.dtype == torch.float32 and one.grad.dtype == torch.float32 for one in training.model.parameters())


def _divide_factor(subject: Subject) -> None:
    """Check that the gradients are the sum over the ranks, divided by a factor that ``set_gradient_divide_factor`` sets."""
    n = subject.world_size
    for dtype, tolerance in ((None, 1e-4), (torch.bfloat16, 0.05), (torch.float16, 0.01)):
        if dtype is not None and subject.lacks(str(dtype).removeprefix("torch.")):
            continue
        for factor in (1.0, 2.0, 3.0):
            training = _Training(subject, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
            for layer in (training.model[0], training.model[2], training.model[4], training.model):
                layer.set_gradient_divide_factor(factor)
                layer.set_force_sum_reduction_for_comms(True)  # torch otherwise calls PREMUL_SUM, which few backends have
            training.backward(0)
            for parameter in training.single.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(n / factor)
            training.check(tolerance)


def _deterministic(subject: Subject) -> None:
    """Train on two meshes with deterministic algorithms, which fill new memory with NaN."""
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        _steps(subject)
        _replicated(subject)
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])


def _accumulated(subject: Subject) -> None:
    """Check that the last backward pass reduces the gradients of all passes if the earlier passes do not synchronise gradients."""
    training = _Training(subject)
    for number in range(3):
        training.model.set_requires_gradient_sync(number == 2)
        training.backward(number)
    training.check()
    training.model[0].unshard()
    assert tuple(training.model[0].weight.shape) == (10, 7), "after unshard, the weight does not have the shape of the whole weight"
    assert not isinstance(training.model[0].weight, DTensor), "after unshard, the weight is still a DTensor"
    training.model[0].reshard()


def _clipped(subject: Subject) -> None:
    training = _Training(subject)
    training.backward(0)
    for norm in (2.0, float("inf")):
        found, expected = (nn.utils.clip_grad_norm_(one.parameters(), 0.01, norm_type=norm) for one in (training.model, training.single))
        total = float(found.full_tensor() if isinstance(found, DTensor) else found)
        assert abs(total - float(expected)) < 1e-3 * float(expected), f"the {norm}-norm of all gradients is {total}, not {float(expected)}"
        training.check(1e-3)


def _states(subject: Subject) -> None:
    """Check that a full state dict contains the unsharded parameters, and that training continues from a saved state of the model and
    the optimizer."""
    training = _Training(subject)
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=0.05)
    whole = get_model_state_dict(training.model, options=StateDictOptions(full_state_dict=True))
    for name, value in training.single.state_dict().items():
        assert torch.equal(whole[name].cpu(), value), f"{name} in the full state dict is wrong"

    def step(number: int) -> None:
        optimizer.zero_grad()
        training.model(training.mine(number)).square().mean().backward()
        optimizer.step()

    step(0)
    folder: list[Any] = [tempfile.mkdtemp() if subject.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0, device=subject.device)
    model_state, optimizer_state = get_state_dict(training.model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])
    step(1)
    expected = [one.detach().full_tensor().cpu() for one in training.model.parameters()]
    step(2)
    state = dict(zip(("model", "optimizer"), get_state_dict(training.model, optimizer), strict=True))
    dcp.load(state, checkpoint_id=folder[0])
    set_state_dict(training.model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    step(1)
    for mine, theirs in zip(training.model.parameters(), expected, strict=True):
        torch.testing.assert_close(mine.detach().full_tensor().cpu(), theirs, rtol=1e-5, atol=1e-6)
    dist.barrier()
    if subject.rank == 0:
        import shutil

        shutil.rmtree(folder[0])


def _replicated(subject: Subject) -> None:
    """Train on two meshes of the shapes (1, n) and (n, 1), where n is the number of processes. Parameters are replicated over the first
    dimension and sharded over the second."""
    n = subject.world_size
    for grid in ([list(range(n))], [[one] for one in range(n)]):
        _steps(subject, mesh=DeviceMesh(subject.device_type, grid, mesh_dim_names=("replicate", "shard")))


def _tensor_parallel(subject: Subject) -> None:
    n = subject.world_size
    torch.default_generator.manual_seed(0)
    single = nn.Sequential(nn.Linear(5, 6 * n), nn.ReLU(), nn.Linear(6 * n, 4))
    model = copy.deepcopy(single).to(subject.device)
    mesh = DeviceMesh(subject.device_type, list(range(n)))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(3, 5)
    there, here = x.to(subject.device, copy=True).requires_grad_(), x.clone().requires_grad_()
    found, expected = model(there), single(here)
    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert there.grad is not None
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor().cpu(), theirs.grad, rtol=1e-4, atol=1e-5)


def _tensors(subject: Subject) -> None:
    """Check the results and gradients of operators on DTensors whose rows or columns are divided unevenly among the processes."""
    mesh = DeviceMesh(subject.device_type, list(range(subject.world_size)))
    torch.default_generator.manual_seed(1)
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    functions: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
        ("sum", lambda a, b: (a * b).sum()), ("mean", lambda a, b: (a + b).mean(0)), ("amax", lambda a, b: a.amax(1)),
        ("softmax", lambda a, b: a.softmax(1) * b), ("softmax of columns", lambda a, b: a.softmax(0)), ("matmul", lambda a, b: a @ b.t()),
        ("var", lambda a, b: a.var(1)), ("cat", lambda a, b: torch.cat([a, b], 1)), ("norm", lambda a, b: torch.linalg.vector_norm(a)),
        ("bfloat16", lambda a, b: a.to(torch.bfloat16).float() * b), ("topk", lambda a, b: a.topk(2, 1).values),
        ("columns of topk", lambda a, b: a.topk(2, 0).values), ("sort", lambda a, b: a.sort(1).values),
        ("transposed", lambda a, b: a.t().contiguous() @ b), ("layer_norm", lambda a, b: nn.functional.layer_norm(a, (7,))),
    )  # fmt: skip
    for name, function in functions:
        if name == "bfloat16" and subject.lacks("bfloat16"):
            continue
        for places in ((Shard(0), Shard(0)), (Shard(1), Shard(0)), (Shard(1), Replicate())):
            here = [one.clone().requires_grad_() for one in (x, y)]
            there = [
                distribute_tensor(one.to(subject.device), mesh, [place]).requires_grad_() for one, place in zip((x, y), places, strict=True)
            ]
            expected, found = function(*here), function(*there)
            torch.testing.assert_close(found.full_tensor().detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5, msg=f"{name} {places}")
            expected.square().sum().backward()
            found.full_tensor().square().sum().backward()
            for ours, theirs in zip(there, here, strict=True):
                if theirs.grad is not None:
                    assert ours.grad is not None
                    torch.testing.assert_close(
                        ours.grad.full_tensor().cpu(), theirs.grad, rtol=1e-3, atol=1e-4, msg=f"the gradient of {name} {places}"
                    )


def _scaled(subject: Subject) -> None:
    """Check that the gradient scalers of all ranks skip the step and halve their scale if one rank's shard of the gradients overflows."""
    require_scaler(subject)
    training = _Training(subject)
    scaler = torch.amp.GradScaler(subject.device_type, init_scale=64.0)
    optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1)
    for number, is_poisoned in enumerate((False, True)):
        optimizer.zero_grad()
        before = [one.detach().to_local().clone() for one in training.model.parameters()]
        scaler.scale(training.model(training.mine(number)).square().mean()).backward()
        local = training.model[0].weight.grad.to_local()
        if is_poisoned and subject.rank == 0:
            local[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        is_changed = [not torch.equal(one.detach().to_local(), old) for one, old in zip(training.model.parameters(), before, strict=True)]
        assert any(is_changed) != is_poisoned, f"{sum(is_changed)} parameters changed in step {number}"
    assert scaler.get_scale() == 32.0, f"on rank {subject.rank}, the scale is {scaler.get_scale()}, not 32"


CASES: Mapping[str, Callable[[Subject], None]] = {
    "no_resharding": lambda subject: _steps(subject, reshard_after_forward=False),
    "frozen_parameters": lambda subject: _steps(subject, freeze=True),
    "replicated": _replicated,
    "mixed_precision": _mixed_precision,
    "divide_factor": _divide_factor,
    "deterministic": _deterministic,
    "offloaded": lambda subject: _steps(subject, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "accumulated": _accumulated,
    "clipped": _clipped,
    "scaled": _scaled,
    "states": _states,
    "tensor_parallel": _tensor_parallel,
    "tensors": _tensors,
}
"""The cases, by name."""
