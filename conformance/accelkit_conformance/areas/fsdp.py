"""Sharded training on the accelerator's backend: FSDP2 and DTensor give the same results as a single process, and their checkpoints can
also be loaded in a single process."""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.areas.ddp import alone, model_and_batch
from accelkit_conformance.checks import SIZES, Case, check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _mesh(subject: Subject) -> Any:
    """Return a mesh of all ranks. It is created without torch's ``init_device_mesh``, which accepts only letters in device types."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh(subject.device_type, list(range(subject.world_size)))


def _sharded(subject: Subject, model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = copy.deepcopy(model).to(subject.device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=_mesh(subject))
    return model


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def gradients_equal_one_process(subject: Subject, size: str) -> None:
    """The full gradients of a fully sharded model equal the gradients that one process computes on the whole batch. The shards of the
    parameters are on the device."""
    import torch

    model, batch = model_and_batch(int(size))
    single = alone(model, batch)
    sharded = _sharded(subject, model)
    sharded(batch[subject.rank :: int(size)].to(subject.device)).square().mean().backward()
    for ours, theirs in zip(sharded.parameters(), single.parameters(), strict=True):
        subject.assert_on_device(ours.to_local())
        torch.testing.assert_close(ours.grad.full_tensor().cpu(), theirs.grad, rtol=1e-4, atol=1e-6)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def steps_equal_one_process(subject: Subject, size: str) -> None:
    """After three steps of AdamW, the full parameters of a fully sharded model equal the parameters of a model that one process trains on
    the whole batch, within a tolerance."""
    import torch

    model, batch = model_and_batch(int(size))
    single, sharded = copy.deepcopy(model), _sharded(subject, model)
    mine = batch[subject.rank :: int(size)].to(subject.device)
    for one, data in ((single, batch), (sharded, mine)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            one(data).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(sharded.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def distributed_tensors(subject: Subject, size: str) -> None:
    """A tensor keeps its values when it is distributed as a DTensor, redistributed and gathered. A matmul of two DTensors gives the same
    result as on the CPU, within a tolerance."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.default_generator.manual_seed(0)
    whole, other = torch.randn(6, 5), torch.randn(5, 4)
    mesh = _mesh(subject)
    a = distribute_tensor(whole.to(subject.device), mesh, [Shard(0)])
    b = distribute_tensor(other.to(subject.device), mesh, [Replicate()])
    subject.assert_on_device(a.to_local())
    assert torch.equal(a.full_tensor().cpu(), whole)
    assert torch.equal(a.redistribute(mesh, [Shard(1)]).full_tensor().cpu(), whole)
    torch.testing.assert_close((a @ b).full_tensor().cpu(), whole @ other, rtol=1e-4, atol=1e-5)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def checkpoints_load_elsewhere(subject: Subject, size: str) -> None:
    """All ranks together save a checkpoint of a sharded model. Each rank can load the checkpoint into an unsharded state dict without the
    other ranks, and all ranks together can load the checkpoint into a sharded model. Afterwards, the state dict and the model have the
    values that were saved."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    model, _ = model_and_batch(int(size))
    sharded = _sharded(subject, model)
    folder: list[Any] = [tempfile.mkdtemp() if subject.rank == 0 else None]
    dist.broadcast_object_list(folder, src=0, device=subject.device)
    dcp.save(sharded.state_dict(), checkpoint_id=folder[0])
    whole = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp.load(whole, checkpoint_id=folder[0], no_dist=True)
    for name, value in model.state_dict().items():
        assert torch.equal(whole[name], value), f"{name} is not what was saved"
    again = _sharded(subject, model_and_batch(int(size))[0])
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    state = again.state_dict()
    dcp.load(state, checkpoint_id=folder[0])
    for name, value in again.state_dict().items():
        assert torch.equal(value.full_tensor().cpu(), model.state_dict()[name]), f"{name} loaded sharded is not what was saved"
    dist.barrier()
    if subject.rank == 0:
        import shutil

        shutil.rmtree(folder[0])


@check("distributed", requires=["process_group", "generator_offset"], over=SIZES, is_distributed=True)
def initialization_from_meta(subject: Subject, size: str) -> None:
    """If a Linear is created on ``meta``, sharded with ``fully_shard`` and then initialised on the device, no two shards of its weight have
    the same values. If the input of the forward pass is two rows of ones, and the backward pass starts from the sum of the outputs, each
    element of the weight's gradient is 2.
    """
    import torch
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        layer = torch.nn.Linear(8, 4 * int(size))
    fully_shard(layer, mesh=_mesh(subject))
    layer.to_empty(device=subject.device)
    torch.manual_seed(0)
    layer.reset_parameters()
    shards = layer.weight.full_tensor().chunk(int(size))  # type: ignore[operator]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(shards, 2)), "two shards drew the same numbers"
    layer(torch.ones(2, 8, device=subject.device)).sum().backward()
    assert bool((layer.weight.grad.full_tensor().cpu() == 2).all())  # type: ignore[union-attr,operator]


def _programs() -> Iterator[Case]:
    from accelkit_conformance.oracle.fsdp_programs import CASES

    yield from (("distributed", (size, name)) for size in SIZES for name in CASES)


@check("distributed", requires=["process_group", "dtype.float32"], over=_programs, is_distributed=True)
def programs(subject: Subject, size: str, name: str) -> None:
    """Sharded models with less common options, and operators on DTensors, give the same results and gradients as one process. The options
    are ``reshard_after_forward=False``, frozen parameters, meshes with a dimension over which parameters are replicated, mixed precision,
    factors by which gradients are divided (with reductions in float32, bfloat16 and float16), deterministic algorithms, parameters that are
    offloaded to the CPU, and gradients that are accumulated before they are reduced. ``clip_grad_norm_`` computes the norm over the
    gradients of the whole model, not only over one rank's shards. If a rank's shard of the gradients overflows, the gradient scalers of all
    ranks skip the step and halve their scale. Training continues from a saved state of the model and the optimizer. Tensor parallelism also
    gives the same results and gradients as one process. The DTensors include some that are divided unevenly. The operators include a
    conversion to bfloat16, ``topk`` and ``sort``."""
    from accelkit_conformance.oracle.fsdp_programs import CASES

    CASES[name](subject)
