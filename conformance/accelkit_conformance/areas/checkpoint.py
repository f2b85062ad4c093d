"""A training that is stopped, saved and loaded ends where one that was not stopped ends, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _objects() -> tuple[Any, Any, Any]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def _steps(runtime: Any, model: Any, optimizer: Any, scheduler: Any, count: int) -> None:
    import torch

    for _ in range(count):
        optimizer.zero_grad()
        runtime.backward(model(torch.randn(8, 4, device=runtime.device)).square().mean())
        optimizer.step()
        scheduler.step()


def _state(model: Any) -> list[torch.Tensor]:
    return [tensor.detach().cpu().clone() for tensor in model.state_dict().values()]


@check("training")
def three_and_three_is_six(subject: Subject) -> None:
    """Three steps, a checkpoint, new objects, three more steps: the parameters are those of six steps, dropout and all."""
    import torch

    def seed() -> None:
        torch.default_generator.manual_seed(0)
        subject.accelerator.manual_seed(0)

    seed()
    runtime = subject.runtime()
    whole = runtime.prepare(*_objects())
    _steps(runtime, *whole, count=6)
    with tempfile.TemporaryDirectory() as folder:
        seed()
        runtime = subject.runtime()
        first = runtime.prepare(*_objects())
        _steps(runtime, *first, count=3)
        runtime.save_state(folder)
        torch.rand(100, device=subject.device)
        runtime = subject.runtime()
        second = runtime.prepare(*_objects())
        runtime.load_state(folder)
        subject.stays(*second[0].parameters(), *second[0].buffers())
        _steps(runtime, *second, count=3)
    for mine, theirs in zip(_state(second[0]), _state(whole[0]), strict=True):
        assert torch.equal(mine, theirs), "after loading, three steps more did not end where six steps end"


@check("training")
def state_is_kept(subject: Subject) -> None:
    """Parameters, buffers, optimizer state and the device's random state are, after loading, what they were when they were saved."""
    import torch

    runtime = subject.runtime()
    model, optimizer, scheduler = runtime.prepare(*_objects())
    _steps(runtime, model, optimizer, scheduler, 2)
    with tempfile.TemporaryDirectory() as folder:
        runtime.save_state(folder)
        kept = _state(model)
        moments = [state["exp_avg"].cpu().clone() for state in optimizer.state.values()]
        drawn = torch.rand(9, device=subject.device).cpu()
        _steps(runtime, model, optimizer, scheduler, 2)
        runtime.load_state(folder)
    for mine, theirs in zip(_state(model), kept, strict=True):
        assert torch.equal(mine, theirs), "a parameter or buffer is not what was saved"
    for state, moment in zip(optimizer.state.values(), moments, strict=True):
        subject.stays(state["exp_avg"])
        assert torch.equal(state["exp_avg"].cpu(), moment), "optimizer state is not what was saved"
    if subject.capabilities.can("random_state"):
        assert torch.equal(torch.rand(9, device=subject.device).cpu(), drawn), "the device's random state is not what was saved"


@check("training")
def loads_on_the_cpu(subject: Subject) -> None:
    """What was saved from the device loads into a run on the CPU."""
    import torch

    from accelkit import Runtime

    runtime = subject.runtime()
    model, optimizer, scheduler = runtime.prepare(*_objects())
    _steps(runtime, model, optimizer, scheduler, 2)
    with tempfile.TemporaryDirectory() as folder:
        runtime.save_state(folder)
        other = Runtime(cpu=True)
        elsewhere = other.prepare(*_objects())
        other.load_state(folder)
    for mine, theirs in zip(_state(elsewhere[0]), _state(model), strict=True):
        assert torch.equal(mine, theirs)
    assert {parameter.device.type for parameter in elsewhere[0].parameters()} == {"cpu"}


@check("training")
def distributed_checkpoint(subject: Subject) -> None:
    """torch.distributed.checkpoint saves device tensors and loads them in place; an asynchronous save does not see what changes after
    it."""
    import torch
    import torch.distributed.checkpoint as dcp

    expected = torch.arange(2048.0)
    there = {"w": expected.to(subject.device, copy=True)}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "asynchronous"):
            path = Path(folder) / name
            if name == "plain":
                dcp.save(there, checkpoint_id=path, no_dist=True)
            else:
                pending = dcp.async_save(there, checkpoint_id=path, no_dist=True)
                there["w"].zero_()
                pending.result()  # type: ignore[union-attr]
            back = {"w": torch.zeros(2048, device=subject.device)}
            dcp.load(back, checkpoint_id=path, no_dist=True)
            subject.stays(back["w"])
            assert torch.equal(back["w"].cpu(), expected), f"a {name} save holds something else than what was there when it was called"
