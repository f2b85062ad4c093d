"""DistributedDataParallel on the accelerator's backend: gradients on every rank equal those of one process that has the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import SIZES, Case, check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def model_and_batch(size: int) -> tuple[Any, Any]:
    """Return a model and the whole batch of a job with ``size`` processes (four samples for each), both on the CPU.

    The function seeds torch's default generator, so that both are the same on every rank.
    """
    import torch

    torch.default_generator.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), torch.randn(4 * size, 8)


def alone(model: Any, batch: Any) -> Any:
    """Return a copy of the model with the gradients that one process computes on the whole batch."""
    single = copy.deepcopy(model)
    single(batch).square().mean().backward()
    return single


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def gradients_are_averaged(subject: Subject, size: str) -> None:
    """After a backward pass, every rank has the gradients that one process computes on the whole batch. The gradients are on the device. A
    second backward pass adds to the gradients."""
    import torch

    model, batch = model_and_batch(int(size))
    single = alone(model, batch)
    ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model).to(subject.device))
    mine = batch[subject.rank :: int(size)].to(subject.device)
    for times in (1, 2):
        ddp(mine).square().mean().backward()
        for ours, theirs in zip(ddp.parameters(), single.parameters(), strict=True):
            assert ours.grad is not None
            subject.assert_on_device(ours.grad)
            torch.testing.assert_close(ours.grad.cpu(), theirs.grad * times, rtol=1e-4, atol=1e-6)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def no_sync_does_not_reduce(subject: Subject, size: str) -> None:
    """Inside ``no_sync``, each rank accumulates its own gradients. The next backward pass outside ``no_sync`` averages the accumulated
    gradients over all ranks."""
    import torch

    model, batch = model_and_batch(int(size))
    ddp = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(model).to(subject.device))
    own = alone(model, batch[subject.rank :: int(size)])
    single = alone(model, batch)
    mine = batch[subject.rank :: int(size)].to(subject.device)
    with ddp.no_sync():
        ddp(mine).square().mean().backward()
    for ours, theirs in zip(ddp.parameters(), own.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6)
    ddp(mine).square().mean().backward()
    for ours, theirs in zip(ddp.parameters(), single.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad * 2, rtol=1e-4, atol=1e-6)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def initial_weights_are_equal(subject: Subject, size: str) -> None:
    """After a model has been wrapped, ranks that started with different parameters and buffers have those of rank 0."""
    import torch

    from accelkit_conformance.oracle.layers import batch_norm

    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), batch_norm(subject, 3)).to(subject.device)
    with torch.no_grad():
        for tensor in [*layer.parameters(), *layer.buffers()]:
            tensor.fill_(subject.rank + 1)
    torch.nn.parallel.DistributedDataParallel(layer)
    for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
        subject.assert_on_device(tensor)
        assert bool((tensor.detach().cpu() == 1).all()), f"rank {subject.rank} has kept its own {name}"


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def buffers_of_every_dtype(subject: Subject, size: str) -> None:
    """After a model has been wrapped, its buffers have the values of rank 0. If the ranks then change their buffers to different values,
    the buffers have the values of rank 0 again after the next forward pass. There are buffers of shape () and of 300 elements. Their dtypes
    are those of float32, float64, float16, bfloat16, int64, int32, int8, uint8 and bool that the device supports."""
    import torch

    model = torch.nn.Linear(3, 3)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"):
        if not subject.lacks(name):
            for shape in ((), (300,)):
                model.register_buffer(f"{name}_{len(shape)}", torch.zeros(shape, dtype=getattr(torch, name)))
    model.to(subject.device)

    def fill_and_check(then: Any, what: str) -> None:
        for buffer in model.buffers():
            buffer.fill_(subject.rank == 0)
        then()
        for name, buffer in model.named_buffers():
            subject.assert_on_device(buffer)
            assert bool((buffer.cpu() == 1).all()), f"rank {subject.rank} has kept its own {name} after {what}"

    wrapped: list[Any] = []
    fill_and_check(lambda: wrapped.append(torch.nn.parallel.DistributedDataParallel(model)), "it was wrapped")
    fill_and_check(lambda: wrapped[0](torch.ones(2, 3, device=subject.device)), "a forward pass")


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def weights_stay_equal(subject: Subject, size: str) -> None:
    """After five steps on different data, all ranks have the same parameters, bit for bit, and the parameters differ from the initial
    parameters."""
    import torch
    import torch.distributed as dist

    model, batch = model_and_batch(int(size))
    start = [parameter.detach().clone() for parameter in model.parameters()]
    ddp = torch.nn.parallel.DistributedDataParallel(model.to(subject.device))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    mine = batch[subject.rank :: int(size)].to(subject.device)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(mine).square().mean().backward()
        optimizer.step()
    trained = [parameter.detach().cpu() for parameter in ddp.parameters()]
    assert not any(map(torch.equal, trained, start)), "five steps left a parameter unchanged"
    everyone: list[Any] = [None] * int(size)
    dist.all_gather_object(everyone, trained)
    for other in everyone:
        for mine, theirs in zip(everyone[0], other, strict=True):
            assert torch.equal(mine, theirs), "ranks have different parameters after training"


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def unused_parameters(subject: Subject, size: str) -> None:
    """With ``find_unused_parameters=True``, a parameter that at least one rank has used gets the same gradient on every rank: the average
    over all ranks. A rank that has not used the parameter contributes zeros to the average. A parameter that no rank has used gets no
    gradient. The set of used parameters may change from pass to pass, and the gradients may be reduced in one bucket or in several."""
    import torch

    from accelkit_conformance.oracle.partial_models import PartialModel

    n = int(size)
    for buckets in ({}, {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}):
        torch.default_generator.manual_seed(0)
        model = PartialModel()
        single = copy.deepcopy(model)
        ddp: Any = torch.nn.parallel.DistributedDataParallel(model.to(subject.device), find_unused_parameters=True, **buckets)
        batch = torch.randn(n, 3, 4)
        for used in ([{0}] * n, [{rank % 3} for rank in range(n)], [{2}, *[set()] * (n - 1)], [{0, 1, 2}] * n):
            ddp.zero_grad()
            single.zero_grad()
            ddp(batch[subject.rank].to(subject.device), used[subject.rank]).sum().backward()
            (sum(single(batch[rank], used[rank]).sum() for rank in range(n)) / n).backward()
            for (name, ours), theirs in zip(ddp.named_parameters(), single.parameters(), strict=True):
                assert (ours.grad is None) == (theirs.grad is None), (
                    f"{name} has {'no' if ours.grad is None else 'a'} gradient when the ranks use the layers {used}"
                )
                if theirs.grad is not None:
                    subject.assert_on_device(ours.grad)
                    torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6)


def _require_sync_batch_norm(subject: Subject) -> None:
    from accelkit_conformance.results import NotSupported

    if subject.device_type == "cpu":
        raise NotSupported("torch's SyncBatchNorm does not support the CPU")


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def synchronized_batch_norm(subject: Subject, size: str) -> None:
    """The outputs, gradients and statistics of SyncBatchNorm equal those of BatchNorm in one process that has the whole batch. The
    parts of the batch on different ranks differ in size."""
    import torch

    _require_sync_batch_norm(subject)
    torch.default_generator.manual_seed(0)
    single = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    n = int(size)
    batch = torch.randn(n * (n + 1) // 2, 2, 5, 5)
    own = slice(subject.rank * (subject.rank + 1) // 2, (subject.rank + 1) * (subject.rank + 2) // 2)  # rank + 1 samples
    synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(single)).to(subject.device)
    ddp = torch.nn.parallel.DistributedDataParallel(synced)
    expected = single(batch)
    weights = torch.linspace(-1, 1, expected[0].numel()).view(expected[0].shape)
    (expected * weights).mean().backward()
    found = ddp(batch[own].to(subject.device))
    ((found * weights.to(subject.device)).sum() * n / expected.numel()).backward()  # DDP averages over ranks, not over samples
    torch.testing.assert_close(found.detach().cpu(), expected.detach()[own], rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(ddp.parameters(), single.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(ddp.module.buffers(), single.buffers(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


@check("distributed", requires=["process_group", "dtype.float32"], over=SIZES, is_distributed=True)
def layouts_of_synchronized_batch_norm(subject: Subject, size: str) -> None:
    """The outputs and gradients of SyncBatchNorm equal those of BatchNorm in one process that has the samples of all ranks, whatever the
    memory layout of the inputs and of the output gradients: contiguous, channels_last, transposed, strided, with an offset, with gaps
    between rows, or with unusual strides in dimensions of length 1."""
    _require_sync_batch_norm(subject)
    from accelkit_conformance.oracle.synchronized_norms import check_layouts

    check_layouts(subject)


@check("full", requires=["process_group", "dtype.float32"], over=SIZES, is_distributed=True)
def kinds_of_synchronized_batch_norm(subject: Subject, size: str) -> None:
    """The outputs, gradients and statistics of SyncBatchNorm equal those of BatchNorm in one process that has the samples of all ranks. The
    first rank has one sample or, in float32, one sample or none. The layer and its input are float32, float16 or bfloat16, or only the
    input is float16 or bfloat16. Layers without parameters and layers without running statistics are tested in float32. The tolerance is
    0.1 % for float32 inputs, 1 % for float16 and 5 % for bfloat16."""
    _require_sync_batch_norm(subject)
    from accelkit_conformance.oracle.synchronized_norms import check_kinds

    check_kinds(subject)


def _programs() -> Iterator[Case]:
    from accelkit_conformance.oracle.ddp_programs import CASES

    yield from (("distributed", (size, name)) for size in SIZES for name in CASES)


@check("distributed", requires=["process_group", "dtype.float32"], over=_programs, is_distributed=True)
def programs(subject: Subject, size: str, name: str) -> None:
    """DDP works with less common options and models: its gradients, and the parameters after several steps, match those of a single process
    that has the whole batch. The models have shared, frozen and channels_last parameters, parameters in two dtypes, complex parameters,
    nested outputs and activation checkpointing. The options are ``static_graph``, ``find_unused_parameters``, small buckets,
    ``gradient_as_bucket_view`` and communication hooks. Further cases are ``no_sync`` over several passes followed by ``clip_grad_norm_``,
    ``join`` with uneven inputs, and ``ZeroRedundancyOptimizer``. If each rank has a process group of its own, each rank keeps its own
    gradients. Each forward pass starts with the buffers of rank 0, or with the rank's own buffers if ``broadcast_buffers`` is False. If the
    loss of one rank is infinite, the gradient scalers of all ranks skip the step and halve their scale. A step on a stream that is not the
    default stream, and that has other work queued, gives the right gradients.
    """
    from accelkit_conformance.oracle.ddp_programs import CASES

    CASES[name](subject)
